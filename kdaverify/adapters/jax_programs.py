"""Functions of JAX arrays, compiled whole: one program for every shape."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    """The function as one program, and its VJP as another, as a model's jitted step has them.

    Operation by operation, each of some eighty is compiled for every shape: five times the time.

    Args:
        function: of arrays; its keywords are fixed in the program.
    """

    @functools.cache
    def program(**fixed: Any) -> Function:
        return _program(functools.partial(function, **fixed))

    @functools.wraps(function)
    def called(*arrays: Any, **fixed: Any) -> Any:
        return program(**fixed)(*arrays)

    return called


def _program(function: Function) -> Function:
    import jax

    forward: Any = jax.jit(function)

    def kept(*arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        return forward(*arrays), arrays

    @jax.jit
    def back(arrays: tuple[Any, ...], cotangents: Any) -> Any:
        return jax.vjp(function, *arrays)[1](cotangents)

    found = jax.custom_vjp(forward)
    found.defvjp(kept, back)
    return found


def at_default_precision(function: Function) -> Function:
    """The function with dot products of JAX's default precision, where it runs on no GPU.

    In 16 bits jax.nn 0.10.2 wants a precision that a CPU has for no fp16, nor for bf16 in every
    shape, and a TPU for no fp16. It falls back to the default when that is refused; in a jitted
    function it cannot, where the refusal comes after it was traced.
    """
    import jax
    from jax.extend.core import jaxpr_as_fun

    if jax.default_backend() == "gpu":
        return function

    def called(*arrays: Any) -> Any:
        return jaxpr_as_fun(_by_default(jax.make_jaxpr(function)(*arrays)))(*arrays)

    return called


def _by_default(traced: Any) -> Any:
    """The traced function with every precision left out, those of functions inside it too."""
    from jax.extend.core import ClosedJaxpr

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return _by_default(value)
        return None if name == "precision" else value

    made = [
        step.replace(params={name: changed(name, value) for name, value in step.params.items()})
        for step in traced.eqns
    ]
    return traced.replace(jaxpr=traced.jaxpr.replace(eqns=made))
