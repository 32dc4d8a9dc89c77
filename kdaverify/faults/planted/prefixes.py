"""A server's cache of one request: where the next one begins alike, it goes on from a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.planted.broken_calls import Outputs, Patch, right
from oracles.inputs import Inputs
from oracles.signature import Role

CHUNK: Final = 64


@dataclass(frozen=True)
class CachedRequest:
    """What is kept of the last one: its tokens, and o and the state of every whole chunk."""

    x: Inputs
    o: list[Tensor]
    states: list[Tensor]

    def shared(self, x: Inputs) -> int:
        """Whole chunks at the start that another request has, too."""
        mine, other = (one.signature.tensors(one, Role.TOKEN) for one in (self.x, x))
        kinds = [(y.dtype, y.shape[2:]) for y in mine.values()]
        if kinds != [(y.dtype, y.shape[2:]) for y in other.values()] or self.x.factor != x.factor:
            return 0
        count = min(self.x.T, x.T) // CHUNK * CHUNK
        same = [
            (y[:, :count] == other[name][:, :count]).flatten(2).all(-1)[0]
            for name, y in mine.items()
        ]
        return int(torch.stack(same).all(0).long().cumprod(0).sum()) // CHUNK


def _answered(x: Inputs, kept: dict[Any, Any], key: Any, *, exact: bool) -> Outputs:
    """One sequence, chunk by chunk."""
    before: CachedRequest | None = kept.get(key)
    o, states, state = list[Tensor](), list[Tensor](), None
    if before is not None and (shared := before.shared(x)):
        o, states = before.o[:shared], before.states[:shared]
        state = before.states[shared - 1 if exact else -1]
    for first in range(len(o) * CHUNK, x.T, CHUNK):
        part, state = right(x.span(first, min(first + CHUNK, x.T), state))
        o.append(part)
        states.append(state)
    assert state is not None
    whole = x.T // CHUNK
    kept[key] = CachedRequest(x.copied(), o[:whole], states[:whole])
    return torch.cat(o, dim=1), state


def continued(*, packs: bool, exact: bool) -> Patch:
    """A path without gradients or states that goes on from where the last request was.

    Args:
        packs: whether it is that of packs, or of single sequences.
        exact: whether the state is that behind the common chunks, or behind all of the request.
    """

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        packed = x.cu_seqlens is not None
        if torch.is_grad_enabled() or x.initial_state is not None or packed != packs or x.B > 1:
            return right(x)
        o, final = (torch.zeros_like(found) for found in right(x))
        for number, (start, length) in enumerate(zip(x.starts, x.lengths, strict=True)):
            if length:
                rows = slice(start, start + length)
                o[:, rows], final[number : number + 1] = _answered(
                    x.span(rows.start, rows.stop, None), kept, number, exact=exact
                )
        return o, final

    return patch
