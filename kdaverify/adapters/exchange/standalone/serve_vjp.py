"""The VJP of a kernel, for serve.py: by its framework, or by a backward of its own."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

TOKENS = ("q", "k", "v", "g", "beta")
OUTPUTS = ("o", "final_state")


def vjp_of(
    function: Callable[..., Any], backward: Callable[..., Any] | None, framework: str
) -> Callable[..., dict[str, Any]]:
    """A function of the kernel's arguments, do and d_final_state to the gradients by name.

    Args:
        backward: (do, d_final_state, q, k, v, g, beta, *, keywords) -> (dq, dk, dv, dg, dbeta[,
            d_initial_state]); None: the framework differentiates `function`.
    """
    by_framework = {"torch": _by_torch, "jax": _by_jax}

    def vjp(*tokens: Any, do: Any, d_final_state: Any, **named: Any) -> dict[str, Any]:
        # A kernel without gates gets no g.
        given = [name for name in TOKENS if name != "g" or len(tokens) == len(TOKENS)]
        leaves: dict[str, Any] = dict(zip(given, tokens))
        if named.get("initial_state") is not None:
            leaves["initial_state"] = named["initial_state"]
        if backward is not None:
            return _by_hand(leaves, backward(do, d_final_state, *tokens, **named))
        if framework not in by_framework:
            raise NotImplementedError(
                f"framework {framework} has no derivatives, and no backward is named"
            )

        def outputs(**x: Any) -> dict[str, Any]:
            returned = function(
                *(x[name] for name in given),
                **{name: x.get(name, value) for name, value in named.items()},
            )
            pair = (
                returned
                if isinstance(returned, (tuple, list)) and len(returned) == 2
                else (returned, None)
            )
            return {
                name: y for name, y in zip(OUTPUTS, pair) if y is not None and name in cotangents
            }

        cotangents = {name: dy for name, dy in zip(OUTPUTS, (do, d_final_state)) if dy is not None}
        found = by_framework[framework](outputs, leaves, cotangents)
        return {_gradient_of(name): dx for name, dx in found.items()}

    return vjp


def wide_types(framework: str, file: Path) -> AbstractContextManager[Any]:
    """JAX's 64-bit types during a call with float64, which it would turn into float32."""
    if framework != "jax":
        return nullcontext()
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    if not any(entry.get("dtype") == "F64" for entry in header.values()):
        return nullcontext()
    # Older releases of JAX have it in jax.experimental alone.
    jax = importlib.import_module("jax")
    return (
        jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    ).enable_x64()


def _gradient_of(name: str) -> str:
    return "d_initial_state" if name == "initial_state" else f"d{name}"


def _by_hand(leaves: dict[str, Any], returned: Any) -> dict[str, Any]:
    names = [_gradient_of(name) for name in leaves]
    if not isinstance(returned, (tuple, list)) or len(returned) != len(names):
        got = (
            f"{len(returned)} values"
            if isinstance(returned, (tuple, list))
            else type(returned).__name__
        )
        raise TypeError(f"backward: wanted ({', '.join(names)}), got {got}")
    return dict(zip(names, returned))


def _by_torch(
    outputs: Callable[..., dict[str, Any]], leaves: dict[str, Any], cotangents: dict[str, Any]
) -> dict[str, Any]:
    torch = importlib.import_module("torch")
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    with torch.enable_grad():
        attached = {name: y for name, y in outputs(**leaves).items() if y.requires_grad}
    if not attached:
        raise NotImplementedError("no output carries a gradient graph of torch")
    given = [cotangents[name].to(y.device) for name, y in attached.items()]
    found = torch.autograd.grad(
        list(attached.values()),
        list(leaves.values()),
        given,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, found))


def _by_jax(
    outputs: Callable[..., dict[str, Any]], leaves: dict[str, Any], cotangents: dict[str, Any]
) -> dict[str, Any]:
    def of_leaves(x: dict[str, Any]) -> dict[str, Any]:
        return outputs(**x)

    _, pull = importlib.import_module("jax").vjp(of_leaves, leaves)
    return pull(cotangents)[0]
