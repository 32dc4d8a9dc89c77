"""A function of JAX arrays called with torch tensors; its backward is its own VJP."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.jax_arrays import through_jax, to_jax
from oracles.tensors import OUTPUTS


class JaxFunction:
    """The function with torch tensors in and out.

    Floating-point tensors become arrays of the same type, and `jax.vjp` differentiates with respect
    to them. Offsets and segment ids
    become int32 arrays: concrete in the function as it is written, and traced inside its own
    `jax.jit`. Everything else is passed as it is; the scale is a Python float.

    Args:
        function: takes JAX arrays, returns o or (o, final_state); jitted or not.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *positional: Any, **named: Any) -> Any:
        given: dict[int | str, Any] = {**dict(enumerate(positional)), **named}
        if not any(isinstance(value, Tensor) for value in given.values()):
            return self._function(*positional, **named)
        tensors = {
            place: value
            for place, value in given.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        others = {place: _fixed(value) for place, value in given.items() if place not in tensors}
        pairs = list[bool]()

        def forward(*arrays: Any) -> tuple[Any, ...]:
            returned = self._returned({**others, **dict(zip(tensors, arrays, strict=True))})
            pairs.append(isinstance(returned, tuple | list))
            return _outputs(returned)

        def vjp(arrays: Any, cotangents: Any) -> Any:
            import jax

            return jax.vjp(forward, *arrays)[1](cotangents)

        o, *final_state = through_jax(forward, vjp, *tensors.values())
        if final_state:
            return o, final_state[0]
        return (o, None) if pairs[-1] else o

    def _returned(self, given: Mapping[int | str, Any]) -> Any:
        positional = [
            given[place] for place in sorted(place for place in given if isinstance(place, int))
        ]
        return self._function(
            *positional, **{name: value for name, value in given.items() if isinstance(name, str)}
        )


def _outputs(returned: Any) -> tuple[Any, ...]:
    """(o, final_state), or (o,), of what a function returned.

    Raises:
        TypeError: it returned something else.
    """
    pair = (
        returned
        if isinstance(returned, tuple | list) and len(returned) == len(OUTPUTS)
        else (returned, None)
    )
    o, final_state = pair
    outputs = (o,) if final_state is None else (o, final_state)
    for name, value in zip(OUTPUTS, outputs, strict=False):
        _check_array(name, value)
    return outputs


def _fixed(value: Any) -> Any:
    # Without 64-bit types JAX has no int64, and offsets fit.
    return to_jax(value.to(torch.int32)) if isinstance(value, Tensor) else value


def _check_array(name: str, value: object) -> None:
    import jax

    if not isinstance(value, jax.Array):
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise TypeError(
            f"{name}: wanted a JAX array (framework='jax'), got {kind}; return the kernel's own"
            " arrays, o or (o, final_state)"
        )
