"""Faults that begin past 4,096 tokens of a sequence: counters that are full, tables that end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import Outputs, Patch, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

LAST: Final = 4096
CHUNK: Final = 16


def _is_late(x: Inputs) -> bool:
    return x.cu_seqlens is None and x.T > LAST


def _counted_in_a_byte(x: Inputs) -> Tensor:
    """The token that each one reads."""
    tokens = torch.arange(x.T)
    return (tokens // CHUNK).to(torch.uint8).long() * CHUNK + tokens % CHUNK


def first_chunks_again(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Numbers of chunks are bytes: the 257th one reads the keys and values of the first."""
    if not _is_late(x):
        return right(x)
    rows = _counted_in_a_byte(x)
    return right(replace(x, k=x.k[:, rows], v=x.v[:, rows]))


def _late(change: Callable[[Inputs], Inputs]) -> Patch:
    return lambda x, _: right(change(x) if _is_late(x) else x)


def _gates_of_twelve_bits(x: Inputs) -> Inputs:
    return replace(x, g=x.g[:, torch.arange(x.T) % LAST])


def _values_of_a_full_table(x: Inputs) -> Inputs:
    return replace(x, v=torch.cat((x.v[:, :LAST], 0 * x.v[:, LAST:]), dim=1))


def keys_of_the_first_chunks(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """The same in the backward: dk of the 257th chunk is added to that of the first."""
    found = EAGER.gradients(x, given)
    if not _is_late(x):
        return found
    dk = torch.zeros_like(found.dk).index_add_(1, _counted_in_a_byte(x), found.dk)
    return replace(found, dk=dk)


def _runs_over(x: Inputs) -> bool:
    return x.cu_seqlens is not None and max(x.lengths) > LAST and sum(map(bool, x.lengths)) > 1


def _rows_of_a_code(x: Inputs) -> Tensor:
    """The token that each one reads where six bits for chunks of 64 run over into the sequence."""
    rows = torch.arange(x.T)
    for first, length in zip(x.starts, x.lengths, strict=True):
        late, behind = first + min(LAST, length), first + length
        rows[late:behind] = torch.arange(behind - late).add(behind).clamp(max=x.T - 1)
    return rows


def values_of_the_next_sequence(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A sequence and its chunk are one number: the 65th chunk is the first of the next one."""
    return right(replace(x, v=x.v[:, _rows_of_a_code(x)]) if _runs_over(x) else x)


def gradients_of_the_next_sequence(
    x: Inputs, given: Cotangents, _: dict[Any, Any]
) -> Gradients[Any]:
    """The same in the backward: dv of the 65th chunk is that of the next sequence's first."""
    found = EAGER.gradients(x, given)
    return replace(found, dv=found.dv[:, _rows_of_a_code(x)]) if _runs_over(x) else found


def ring_of_states(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """States are kept every 512 tokens, in a ring of 8: dq of the first 512 reads later ones."""
    found = EAGER.gradients(x, given)
    if not _is_late(x):
        return found
    dq = found.dq.clone()
    dq[:, : LAST // 8] *= 0.5
    return replace(found, dq=dq)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "chunks of 16 tokens are counted in a byte": lambda: port(first_chunks_again),
    "gates are addressed with twelve bits": lambda: port(_late(_gates_of_twelve_bits)),
    "a table of values ends at 4,096 tokens": lambda: port(_late(_values_of_a_full_table)),
    "dk of chunks that are counted in a byte": lambda: Derived(keys_of_the_first_chunks),
    "a sequence and its chunk of 64 tokens are one number, of six bits": lambda: port(
        values_of_the_next_sequence
    ),
}
"""By what is wrong."""
