"""Kernels right about memory at K = 8, V = 4, and wrong about the tails of other widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.isolation.arena import reach
from kdaverify.faults.planted.broken_calls import Outputs, held_before, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

TILE: Final = 64
NARROW: Final = 48


def _read(x: Tensor, width: int) -> Tensor:
    """Rows of `width` elements that begin with those of x; what lies past x counts 0."""
    room = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    if width == x.shape[-1] or reach(x) + width - x.shape[-1] > room:
        return x
    rows = x.as_strided((*x.shape[:-1], width), x.stride())
    return x + 0 * rows[..., x.shape[-1] :].sum(dim=-1, keepdim=True)


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def pairs_of_keys(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads k two elements at a time."""
    return right(replace(x, k=_read(x.k, _rounded_up(x.K, 2))))


def tiles_of_values(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads v in tiles of 64 columns once there are more than 64."""
    return right(replace(x, v=_read(x.v, _rounded_up(x.V, TILE)) if x.V > TILE else x.v))


def pairs_of_queries(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads q four elements at a time, masked for every width but the odd ones."""
    return right(replace(x, q=_read(x.q, _rounded_up(x.K, 4)) if x.K % 2 else x.q))


def last_column_added_to_unwritten(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Adds the last column of an odd width to 0 times what its memory held before."""
    o, final = right(x)
    whole = x.V // 2 * 2
    return (
        torch.cat((o[..., :whole], o[..., whole:] + 0 * held_before(o)[..., whole:]), dim=-1),
        final,
    )


def tiles_of_48_keys(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Every tile of 48 key channels behind the first is scaled once more, where they divide K."""
    return right(replace(x, q=_scaled_again(x.q, x)))


def derived_in_tiles_of_48(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """The same of dq alone."""
    found = EAGER.gradients(x, given)
    return replace(found, dq=_scaled_again(found.dq, x))


def _scaled_again(rows: Tensor, x: Inputs) -> Tensor:
    if x.K % NARROW or x.K % TILE == 0:
        return rows
    behind = torch.arange(x.K) >= NARROW
    return torch.where(behind, rows * x.factor, rows)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "k is read in pairs": lambda: port(pairs_of_keys),
    "v is read in tiles of 64": lambda: port(tiles_of_values),
    "q of odd widths is read in fours": lambda: port(pairs_of_queries),
    "the last column of an odd width is added to unwritten memory": lambda: port(
        last_column_added_to_unwritten
    ),
}
