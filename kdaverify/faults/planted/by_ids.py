"""Kernels that take segment ids: a right one, and some that take ids for more than names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import DTYPES, Outputs, right
from oracles.inputs import Inputs

SHORT: Final = 32
"""Tokens of sequences whose channels are summed from the first on."""


def _whatever_the_ids(x: Inputs, _: Tensor) -> Outputs:
    return right(x)


def by_ids(
    starts: Callable[[Tensor], Tensor],
    *,
    drops: Callable[[Tensor], Tensor] | None = None,
    computes: Callable[[Inputs, Tensor], Outputs] = _whatever_the_ids,
) -> Adapter:
    """A kernel of packs by their ids.

    Args:
        starts: ids [T] -> whether a sequence begins at every token but the first.
        drops: ids [T] -> the tokens but the first whose values it leaves out.
        computes: what it returns of a pack with offsets, and ids [T].
    """

    @kernel(
        name="by-ids",
        contract={"fp32": "chunk64-fp32", "bf16": "chunk64-bf16"},
        packing="segment_ids",
        dtypes=DTYPES,
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        segment_ids: Tensor | None,
    ) -> Outputs:
        if segment_ids is None:
            return right(Inputs(q, k, v, g, beta, scale, initial_state))
        ids = segment_ids[0]
        edges = [0, *(starts(ids).nonzero().flatten() + 1).tolist(), len(ids)]
        if drops is not None:
            v = torch.cat((v[:, :1], v[:, 1:].masked_fill(drops(ids)[:, None, None], 0)), dim=1)
        offsets = torch.tensor(edges, dtype=torch.int32)
        return computes(Inputs(q, k, v, g, beta, scale, None, offsets), ids)

    return call


def changes(ids: Tensor) -> Tensor:
    return ids[1:] != ids[:-1]


def _rises_or_ends(ids: Tensor) -> Tensor:
    return (ids[1:] > ids[:-1]) | (changes(ids) & (ids[1:] < 0))


def _counts(ids: Tensor) -> Tensor:
    """How often every id occurs, in the order of the ids; a table of all up to 2^26 has 512 MiB."""
    return ids.unique(return_counts=True)[1]


def _sorted_counts(ids: Tensor) -> Tensor:
    """Boundaries from how often every id occurs, in the order of the ids, padding last."""
    counts = _counts(torch.where(ids < 0, ids.max() + 1, ids))
    found = torch.zeros(len(ids), dtype=torch.bool)
    found[counts.cumsum(0)[:-1]] = True
    return found[1:]


def _by_longest(x: Inputs, ids: Tensor) -> Outputs:
    if int(_counts(ids[ids >= 0]).max()) <= SHORT:
        return right(x)
    o, final = right(replace(x, q=x.q.flip(-1), k=x.k.flip(-1), g=x.g.flip(-1)))
    return o, final.flip(-2)


def summed_by_longest() -> Adapter:
    """Sums over key channels are made in an order that the longest sequence decides, as of matrices
    that are padded to it.
    """
    return by_ids(changes, computes=_by_longest)


RIGHT_BY_IDS = by_ids(changes)
BROKEN_BY_IDS: dict[str, dict[str, Callable[[], Adapter]]] = {
    "renumbered": {
        "a smaller id starts no sequence": lambda: by_ids(_rises_or_ends),
        "ids are taken for sorted": lambda: by_ids(_sorted_counts),
        "a token is dropped where ids fall": lambda: by_ids(
            changes, drops=lambda ids: (ids[1:] < ids[:-1]) & (ids[1:] >= 0)
        ),
        "ids are cut to a byte": lambda: by_ids(lambda ids: changes(ids.to(torch.int8))),
        "ids are clamped to a table of 64": lambda: by_ids(lambda ids: changes(ids.clamp(max=63))),
        "ids are compared in fp32": lambda: by_ids(lambda ids: changes(ids.float())),
    },
    "padding-by-ids": {
        "as many tokens as are no padding are read": lambda: by_ids(
            changes, drops=lambda ids: torch.arange(1, len(ids)) >= (ids >= 0).sum()
        ),
        "what follows padding starts no sequence": lambda: by_ids(
            lambda ids: changes(ids) & (ids[:-1] >= 0)
        ),
        "the first padding ends the pack": lambda: by_ids(
            changes, drops=lambda ids: (ids < 0).cumsum(0)[1:] > 0
        ),
        "the token behind padding is dropped": lambda: by_ids(
            changes, drops=lambda ids: (ids[:-1] < 0) & (ids[1:] >= 0)
        ),
    },
}
"""Right wherever ids count the sequences in order, and padding is last."""
OF_FEW_BITS: dict[str, Callable[[], Adapter]] = {
    "ids are cut to 16 bits": lambda: by_ids(lambda ids: changes(ids.to(torch.int16))),
    "ids are cut to 24 bits": lambda: by_ids(lambda ids: changes(ids & 0xFFFFFF)),
}
"""Broken by `renumbered`; ids go by order."""
