"""Problems of the merge of two states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.attention.problem import Dtype
from kdaverify.operators.attention.regimes import LOWEST
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.attention.calls import MergeCall

Parts = Literal[
    "normal",
    "equal",
    "far",
    "apart",
    "high",
    "low",
    "lowest",
    "large-values",
    "one-empty",
    "empty",
    "first-once",
    "second-once",
    "near",
    "zeros",
    "zero-rows",
    "outweighed",
]
OUTWEIGHED: Final = (10.0, 19.0)
"""By how much one part's LSE is smaller, by pairs of heads: in 16 bits, and in fp32, its weight is
below half a spacing of 1. A kernel that dropped it was accepted; its o is 2^9 times as large."""
APART: Final = (100.0, -100.0, 130.0, -130.0, 1e4, -1e4)
"""By row: past the range of exp in fp32 (88 upwards), of 2^x (128), and of fp16 sums."""
NEAR: Final = (9e-6, -9e-5, -9e-7, 9e-4, 9e-8, -9e-6, 9e-5)
"""By row: just below powers of ten, where a kernel may take parts for equal."""
ZEROS: Final = ((0.0, None), (None, -0.0), (0.0, -0.0), (0.0, -torch.inf), (-torch.inf, 0.0))
"""By row, of each part; None: as it is. A single key of logit 0 has an LSE of 0: a kernel that took
it for memory that nothing was written to was accepted."""
LARGE: Final = {"fp16": 2.0**15.9, "bf16": 2.0**100, "fp32": 2.0**100}
"""Of o in two parts, by format: sums of both before the division are past the largest number of
fp16."""


class MergeProblem(Canonical):
    """One problem of a merge.

    Args:
        T, H, d_v: rows, heads, columns.
        parts: how the LSE of both relate: far is 80 apart, apart 100 to 10,000, one-empty -inf in
            one part of every third row, first-once and second-once in that part of one row, empty
            in both of every third row too, near up to 9e-4 apart, zeros exactly 0 or -0 in one part
            or both, outweighed 10 or 19 smaller in one part of a head, whose o is large. With
            large-values and zero-rows it is normal: o is near the end of fp16's
            range, or rows of o are exactly 0 or -0 in one part or both.
    """

    op: Literal["merge_state"] = "merge_state"
    dtype: Dtype = "fp32"
    seed: int = 1
    T: int = Field(default=3, ge=1)
    H: int = Field(default=2, ge=1)
    d_v: int = Field(default=8, ge=1)
    parts: Parts = "normal"

    @property
    def packed(self) -> bool:
        return False

    @property
    def lengths(self) -> tuple[int, ...] | None:
        return None

    @property
    def B(self) -> int:
        return 1

    @property
    def regime(self) -> str:
        return self.parts

    @property
    def stem(self) -> str:
        return f"merge_state-{self.dtype}-T{self.T}H{self.H}d{self.d_v}-{self.parts}"

    def inputs(self) -> MergeCall:
        def drawn(name: str, *shape: int) -> Tensor:
            return torch.from_numpy(Stream(self.seed, self.op, name).normal(*shape))

        o: list[Any] = [drawn(f"o {part}", self.T, self.H, self.d_v) for part in "ab"]
        lse = [3 * drawn(f"lse {part}", self.H, self.T) for part in "ab"]
        lse[0], lse[1] = _related(self.parts, lse[0], lse[1])
        o = [
            x.masked_fill(torch.isneginf(y).mT[..., None], 0.0).to(TORCH[self.dtype])
            for x, y in zip(o, lse, strict=True)
        ]
        if self.parts == "large-values":
            o = [(LARGE[self.dtype] * x.sign() * (1 - x.abs() / 32)).to(x) for x in o]
        if self.parts == "outweighed":
            less = (lse[0] < lse[1]).mT[..., None]
            o = [
                x * torch.where(own, 2.0**9, 1.0).to(x)
                for x, own in zip(o, (less, ~less), strict=True)
            ]
        if self.parts == "zero-rows":
            turn = (torch.arange(self.T)[:, None] + torch.arange(self.H)) % 4
            o[0][(turn == 0) | (turn == 2)], o[1][(turn == 1) | (turn == 2)] = 0.0, -0.0
        return MergeCall(o[0], lse[0].float(), o[1], lse[1].float())


def _outweighed(heads: int, rows: int) -> Tensor:
    """Of one sign in a head, 10 or 12.5, and 19 or 23.75."""
    head, row = torch.arange(heads)[:, None], torch.arange(rows)
    gap = torch.tensor(OUTWEIGHED)[head // 2 % 2] * (1 + row % 2 / 4)
    return torch.where(head % 2 == 0, gap, -gap)


GAPS: Final[Mapping[str, Callable[[int, int], Tensor]]] = {
    "far": lambda _, rows: torch.where(torch.arange(rows) % 3 > 0, 80.0, -80.0),
    "apart": lambda _, rows: torch.tensor(APART)[torch.arange(rows) % len(APART)],
    "outweighed": _outweighed,
}
"""What the LSE of the second part has more than that of the first, [H, T]."""


def _related(parts: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    row = torch.arange(a.shape[1]) % 3
    shift = {"high": 1000.0, "low": -1000.0, "lowest": LOWEST}.get(parts, 0.0)
    if parts == "equal":
        return a, a.clone()
    if parts == "near":
        # small LSE, of which fp32 resolves such differences
        a = a / 32
        return a, a + torch.tensor(NEAR)[torch.arange(a.shape[1]) % len(NEAR)]
    if parts in GAPS:
        return a, a + GAPS[parts](*a.shape)
    if parts == "zeros":
        return _with_zeros(a, 0), _with_zeros(b, 1)
    if parts == "first-once":
        a[:, len(row) // 2] = -torch.inf
    if parts == "second-once":
        b[:, len(row) // 2] = -torch.inf
    if parts in ("one-empty", "empty"):
        a = a.masked_fill(row == 1, -torch.inf)
        b = b.masked_fill(row == 2, -torch.inf)
    if parts == "empty":
        a, b = (x.masked_fill(row == 0, -torch.inf) for x in (a, b))
    return a + shift, b + shift


def _with_zeros(lse: Tensor, part: int) -> Tensor:
    """LSE [H, T] of a part with the numbers of `ZEROS` in its rows."""
    given = [row[part] for row in ZEROS]
    own = torch.tensor([x is None for x in given])
    numbers = torch.tensor([0.0 if x is None else x for x in given], dtype=lse.dtype)
    row = torch.arange(lse.shape[1]) % len(ZEROS)
    return torch.where(own[row], lse, numbers[row])
