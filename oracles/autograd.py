"""The backward of whatever torch can differentiate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS, SIGNATURE

FORWARD_ONLY: Final = "forward only: "


class ForwardOnlyError(Exception):
    """There is no backward.

    Args:
        found: how that was found.
    """

    def __init__(self, found: str) -> None:
        super().__init__(FORWARD_ONLY + found.removeprefix(FORWARD_ONLY))


# A graph is wanted, whatever the caller wants for itself.
@torch.inference_mode(mode=False)
def differentiate(
    forward: Callable[[Inputs], tuple[Any, Any]], inputs: Inputs, cotangents: Cotangents
) -> Gradients[Any]:
    """The gradients that torch's autograd finds for `forward`.

    Args:
        forward: gives o and S_T; what is no tensor, or has no graph, has no gradient.
        inputs: the call; the leaves lie in its memory, so that edits by `forward` or its backward
            are seen there.
        cotangents: of o and S_T.
    Returns:
        Gradients in the types of the inputs; zeros where the graph does not reach, None without an
        initial state.
    Raises:
        ForwardOnlyError: no output has a graph.
    """
    leaves = {name: leaf(getattr(inputs, name)) for name in _given(inputs)}
    by_input = derivatives(lambda: forward(replace(inputs, **leaves)), leaves, cotangents)
    return Gradients(**{gradient: by_input.get(name) for gradient, name in GRADIENTS.items()})


def leaf(tensor: Tensor) -> Tensor:
    """The tensor as a leaf of a graph, in the memory where it lies; a copy of one made in inference
    mode, which no graph takes.
    """
    own = tensor.clone() if tensor.is_inference() else tensor
    return own.detach().requires_grad_()


def derivatives(
    call: Callable[[], tuple[Any, Any]], leaves: Mapping[str, Tensor], cotangents: Cotangents
) -> dict[str, Tensor]:
    """The gradients of every leaf that torch's autograd finds.

    Args:
        call: gives o and S_T, made from the leaves; what is no tensor, or has no graph, has no
            gradient.
        leaves: by name; they require gradients.
    Returns:
        By the name of the leaf, in its type; zeros where the graph does not reach.
    Raises:
        ForwardOnlyError: no output has a graph.
    """
    outputs = _with_graph(call)
    attached = {
        name: value for name, value in zip(OUTPUTS, outputs, strict=True) if _has_graph(value)
    }
    if not attached:
        raise ForwardOnlyError("no output carries a gradient graph of torch")
    wanted = {output: getattr(cotangents, name) for name, output in SIGNATURE.cotangents.items()}
    asked = {name: dy for name, dy in wanted.items() if dy is not None and name in attached}
    found = _grad([attached[name] for name in asked], list(asked.values()), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def _with_graph(call: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    try:
        with torch.enable_grad():
            return call()
    except RuntimeError as error:
        # What torch says to a kernel that takes its tensors over to NumPy, JAX or a runtime.
        if "Tensor that requires grad" in str(error):
            raise ForwardOnlyError(f"it leaves torch, {error}") from error
        raise


def _given(inputs: Inputs) -> list[str]:
    return [name for name in GRADIENTS.values() if getattr(inputs, name) is not None]


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _grad(outputs: list[Tensor], cotangents: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Zeros where nothing that is differentiated depends on a leaf: a state that comes back
    detached has no gradient, and is judged so.
    """
    if not outputs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    given = [dy.to(y.dtype) for y, dy in zip(outputs, cotangents, strict=True)]
    return list(
        torch.autograd.grad(outputs, leaves, given, allow_unused=True, materialize_grads=True)
    )
