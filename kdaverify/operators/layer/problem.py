"""Problems of a whole layer: a batch of equal lengths, and the lengths laws cut it to."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.layer.call import LayerCall
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream


class LayerProblem(Canonical):
    """One problem.

    Args:
        B, T: sequences, and tokens of each.
        D: the width of the layer.
    """

    op: Literal["layer"] = "layer"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int = 1
    B: int = Field(default=1, ge=1)
    T: int = Field(ge=1)
    D: int = Field(default=64, ge=1)

    @property
    def regime(self) -> str:
        return "normal"

    @property
    def stem(self) -> str:
        return f"layer-{self.dtype}-B{self.B}T{self.T}D{self.D}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the sequences of a pack or padded batch: whole, two thirds, one token, and so on."""
        wanted = (self.T, 1 + 2 * self.T // 3, 1, max(1, self.T // 3), max(1, self.T - 1))
        return tuple(min(self.T, wanted[b % len(wanted)]) for b in range(self.B))

    def inputs(self) -> LayerCall:
        return LayerCall(self.normal("hidden", self.B, self.T))

    def normal(self, name: str, rows: int, tokens: int) -> Tensor:
        """Normal values [rows, tokens, D] in the format of the problem."""
        drawn = Stream(self.seed, self.op, name).normal(rows, tokens, self.D)
        return torch.from_numpy(drawn).to(TORCH[self.dtype])
