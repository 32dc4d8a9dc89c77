"""Faults of launches that are captured after many calls of a shape, with what they were called
with at that time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import Outputs, Patch, decoding, port, right
from oracles.inputs import Inputs

CALLS: Final = 32
"""Of one shape, before it is captured."""


def captured(*fields: str, keyed: bool = False) -> Patch:
    """A launch that keeps some arguments of the call that captured it.

    Args:
        fields: their names.
        keyed: whether their values are part of what a launch is kept by, which is right.
    """

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        own = {name: getattr(x, name) for name in fields}
        values = tuple(_plain(value) for value in own.values()) if keyed else ()
        packed = None if x.cu_seqlens is None else x.N
        key = (x.q.dtype, *x.q.shape, *x.v.shape, x.initial_state is None, packed, values)
        kept[key] = kept.get(key, 0) + 1
        if kept[key] <= CALLS:
            return right(x)
        held = kept.setdefault((key, "held"), {name: _copied(value) for name, value in own.items()})
        return right(replace(x, **held))

    return patch


def _plain(value: Any) -> Any:
    return (*value.tolist(),) if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a launch captured after 32 calls has the scale of that time": lambda: port(captured("scale")),
    "a launch captured after 32 calls has the offsets of that time": lambda: port(
        captured("cu_seqlens")
    ),
    "a decode step captured after 32 calls has the scale of that time": lambda: decoding(
        captured("scale")
    ),
}
"""By what is wrong."""
