"""The backward of whatever torch can differentiate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS

Y = TypeVar("Y")
FORWARD_ONLY: Final = "forward only: "
NO_GRAPH: Final = "no output carries a gradient graph of torch"


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
        inputs: the call; leaves lie in its memory, so that edits are seen there.
        cotangents: of o and S_T.
    Returns:
        Gradients in the types of the inputs; zeros where the graph does not reach, None without an
        initial state.
    Raises:
        ForwardOnlyError: no output has a graph.
    """
    leaves = leaves_of({name: getattr(inputs, name) for name in _given(inputs)})

    def outputs() -> dict[str, Any]:
        return dict(zip(OUTPUTS, forward(replace(inputs, **leaves)), strict=True))

    by_input = derivatives(outputs, leaves, cotangents.by_output())
    return Gradients(**{gradient: by_input.get(name) for gradient, name in GRADIENTS.items()})


_FROZEN: Final = ContextVar[frozenset[str]]("frozen", default=frozenset())


@contextmanager
def frozen(names: Collection[str]) -> Generator[None]:
    """Within it these inputs need no gradient, as those of a layer that is not trained; they have
    none. What a kernel receives in other conventions is frozen in them.
    """
    before = _FROZEN.set(frozenset(names))
    try:
        yield
    finally:
        _FROZEN.reset(before)


_EVALUATED: Final = ContextVar[bool]("evaluated", default=False)


@contextmanager
def evaluated_before() -> Generator[None]:
    """Within it a call under no_grad gets the tensors of a recorded call right before it, as in an
    evaluation before a step, or under checkpointing.
    """
    before = _EVALUATED.set(True)
    try:
        yield
    finally:
        _EVALUATED.reset(before)


Backward = Literal["grad", "backward"]
"""`torch.autograd.grad`, which returns gradients, or `backward()`, which adds them to `.grad`."""
_EARLIER: Final = ContextVar[Backward | None]("earlier", default=None)


@contextmanager
def after_a_micro_batch(backward: Backward) -> Generator[None]:
    """Within it every call follows an equal one with the same leaves, whose `.grad` has the
    gradients of that, as where a training program sums over micro-batches.
    """
    before = _EARLIER.set(backward)
    try:
        yield
    finally:
        _EARLIER.reset(before)


def leaves_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a call's tensors that are not frozen, as leaves of a graph."""
    return {name: leaf(x) for name, x in tensors.items() if name not in _FROZEN.get()}


def leaf(tensor: Tensor) -> Tensor:
    """The tensor as a leaf of a graph, in place; a copy if made in inference mode."""
    own = tensor.clone() if tensor.is_inference() else tensor
    return own.detach().requires_grad_()


def derivatives(
    call: Callable[[], Mapping[str, Any]],
    leaves: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The gradients of every leaf that torch's autograd finds, for a call of any operator.

    Args:
        call: gives outputs by name, made from the leaves; others have no gradient.
        leaves: by name; they require gradients.
        cotangents: by the name of the output.
    Returns:
        By the name of the leaf, in its type; zeros where the graph does not reach.
    Raises:
        ForwardOnlyError: no output has a graph.
    """
    backward = _EARLIER.get()
    if backward is None:
        return gradients_of(_recorded(call), leaves, cotangents)
    return _OF_MICRO_BATCHES[backward](call, leaves, cotangents)


def _beside_grad(
    call: Callable[[], Mapping[str, Any]],
    leaves: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The gradients of a second call, those of the first in `.grad`."""
    for name, dx in gradients_of(_recorded(call), leaves, cotangents).items():
        leaves[name].grad = dx
    return gradients_of(_recorded(call), leaves, cotangents)


def _added_to_grad(
    call: Callable[[], Mapping[str, Any]],
    leaves: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Half of what `backward()` of two equal calls adds up to.

    Rounding is monotone: half of the rounded sum lies between the gradients of both calls, and is
    theirs to the bit where they are equal.
    """
    for _ in range(2):
        loss = _loss_on(_recorded(call), cotangents)
        if loss is not None:
            loss.backward(inputs=[*leaves.values()])
    return {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad / 2
        for name, leaf in leaves.items()
    }


_OF_MICRO_BATCHES: Final = {"grad": _beside_grad, "backward": _added_to_grad}


def gradients_of(
    outputs: Mapping[str, Any],
    leaves: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    *,
    keep: bool = False,
) -> dict[str, Tensor]:
    """The gradients of every leaf, of outputs that were made from them.

    Zeros where nothing that is differentiated depends on a leaf: a state that comes back detached
    has no gradient, and is judged so.

    Args:
        keep: whether the graph can be walked again.
    """
    loss = _loss_on(outputs, cotangents)
    if loss is None:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        loss,
        list(leaves.values()),
        retain_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, found, strict=True))


class _Loss(torch.autograd.Function):
    """A number whose gradients are the cotangents given, as they lie in memory.

    Where `torch.autograd.grad` gets incoming gradients, it imports SymPy to compare their shapes:
    0.8 s of CPU time in every process that judges gradients.
    """

    @staticmethod
    def forward(ctx: Any, cotangents: list[Tensor], *outputs: Tensor) -> Tensor:
        ctx.cotangents = cotangents
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        del grad_outputs
        return None, *ctx.cotangents


def _loss_on(outputs: Mapping[str, Any], cotangents: Mapping[str, Tensor]) -> Tensor | None:
    """The loss on what has a graph; None where nothing has."""
    reached = [name for name in cotangents if _has_graph(outputs[name])]
    if not reached:
        return None
    return _loss([outputs[name] for name in reached], [cotangents[name] for name in reached])


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _loss(outputs: list[Tensor], cotangents: list[Tensor]) -> Tensor:
    """Their loss.

    Raises:
        RuntimeError: an output has another shape than its cotangent, which a function of autograd
            would sum to that shape where it can.
    """
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if output.shape != cotangent.shape:
            raise RuntimeError(
                f"Mismatch in shape: an output of {list(output.shape)} has an incoming gradient of"
                f" {list(cotangent.shape)}"
            )
    given = [dy.to(y.dtype) for y, dy in zip(outputs, cotangents, strict=True)]
    return _Loss.apply(given, *outputs)


def _recorded(call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The outputs of a call.

    Raises:
        ForwardOnlyError: none has a graph.
    """
    outputs = _with_graph(call)
    if not any(map(_has_graph, outputs.values())):
        raise ForwardOnlyError(NO_GRAPH)
    return outputs


def _with_graph(call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    def after_an_evaluation() -> Mapping[str, Any]:
        with torch.no_grad():
            call()
        return call()

    return within_torch(after_an_evaluation if _EVALUATED.get() else call)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def within_torch(call: Callable[[], Y]) -> Y:
    """What a call returns that gets tensors which require gradients.

    Raises:
        ForwardOnlyError: it takes them over to NumPy, JAX or a runtime.
    """
    try:
        return call()
    except RuntimeError as error:
        # What torch says to such a kernel.
        if "Tensor that requires grad" in str(error):
            raise ForwardOnlyError(f"it leaves torch, {error}") from error
        raise


def _given(inputs: Inputs) -> list[str]:
    return [name for name in GRADIENTS.values() if getattr(inputs, name) is not None]


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
