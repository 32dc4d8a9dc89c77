"""Faults of the backward at widths of heads that models have: gradients are stored by the tiles of
another width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest
from kdaverify.faults.fault import Fault

ATOM: Final = 32
"""Columns that a store writes at most."""
PADDED: Final = 16
"""Heads are padded to a multiple of this many columns."""
TWO_BLOCKS: Final = 128
"""Columns of k from which two blocks have half of the columns each."""
NARROWEST: Final = 64
"""Columns of k up to which the pitch is right: heads that are as wide or narrower have one tile."""


def _half(width: int) -> int:
    return width // PADDED * PADDED // 2


def _misplaced_columns(
    request: KernelRequest, _do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """The rest of a half of dv behind the last whole atom of dk lies an atom's half too far."""
    dq, dk, dv, *rest = found
    d_k, half = request.q.shape[-1], _half(dv.shape[-1])
    atom = gcd(ATOM, _half(d_k)) or 1
    if d_k < TWO_BLOCKS or half % atom == 0:
        return found
    columns = [torch.arange(start + half // atom * atom, start + half) for start in (0, half)]
    dv = dv.clone()
    for at in columns:
        dv[..., at] = dv[..., at.roll(len(at) // 2)]
    return (dq, dk, dv, *rest)


def _other_pitch(request: KernelRequest, _do: Tensor, found: Sequence[Tensor]) -> Sequence[Tensor]:
    """Rows of dq are written behind each other in 16s of columns, and read in 32s."""
    dq, *rest = found
    d_k = request.q.shape[-1]
    written, read = (-(-d_k // n) * n for n in (PADDED, ATOM))
    if not NARROWEST < d_k <= TWO_BLOCKS or written == read:
        return found
    shape, rows = dq.shape[:-2], dq.shape[-2]
    memory = dq.new_zeros(*shape, rows * read)
    memory[..., : rows * written].view(*shape, rows, written)[..., :d_k] = dq
    return (memory.view(*shape, rows, read)[..., :d_k], *rest)


_fault = partial(Fault, kind="B", dtypes=EVERY, operator="attention")
# fmt: off
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="WIDTH-dv", title="dv is stored by the atoms of dk", stage="dkv", outputs=("dv",),
           reference="Dao-AILab/flash-attention#2552",
           trigger="d_k of 128 and more, half of d_v no multiple of 32, gradients",
           patch=lambda _: AttentionPatch(gradients=_misplaced_columns)),
    _fault(id="WIDTH-dq", title="rows of dq are written at another pitch than they are read at",
           reference="Dao-AILab/flash-attention#2896", stage="dq", outputs=("dq",),
           trigger="d_k of 72, 80, 104 or 112, gradients",
           patch=lambda _: AttentionPatch(gradients=_other_pitch)),
)
# fmt: on
