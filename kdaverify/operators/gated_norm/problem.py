"""Problems of the gated RMSNorm, and the regimes of their values,
each for a fault that it exposes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.pointwise.gated_norm import GatedNormCall

DEEP: Final = (
    -1e4,
    -110.0,
    -95.0,
    -88.0,
    -80.0,
    -30.0,
    -16.0,
    -5.5,
    -1.2784645,
    0.0,
    20.0,
    95.0,
    1e4,
)
"""Gates where exp(-z) or sigmoid(z) leaves fp32, where 1 - s rounds away, at the minimum of SiLU,
and on the positive side."""
Pair = tuple[Tensor, Tensor]


def _normal(x: Tensor, z: Tensor) -> Pair:
    return x, z


def _rows(x: Tensor) -> Tensor:
    return torch.arange(x.numel() // x.shape[-1]).view(*x.shape[:-1], 1)


def _zero_rows(x: Tensor, z: Tensor) -> Pair:
    return torch.where(_rows(x) % 2 == 0, 0.0, x), z


def _single(x: Tensor, z: Tensor) -> Pair:
    """One large element a row, at another place in each."""
    at = torch.arange(x.shape[-1]) == _rows(x) % x.shape[-1]
    return torch.where(at, 2.0**8, x * 2.0**-6), z


def _deep(x: Tensor, z: Tensor) -> Pair:
    target = torch.tensor(DEEP, dtype=torch.float64)
    return x, target[torch.arange(z.numel()) % len(target)].view(z.shape) * (1 + z * 2.0**-10)


def _scaled(exponent: int) -> Callable[[Tensor, Tensor], Pair]:
    return lambda x, z: (x * 2.0**exponent, z)


def _mixed(x: Tensor, z: Tensor) -> Pair:
    """Rows from 2^-10 to 2^8: each has its own root."""
    return x * torch.exp2((_rows(x) % 19 - 10).double()), z


REGIMES: Final[Mapping[str, tuple[str, Callable[[Tensor, Tensor], Pair]]]] = {
    "normal": ("ordinary values", _normal),
    "small": ("rows whose mean square is as large as eps", _scaled(-9)),
    "zero-rows": (
        "every other row is 0: eps alone is under the root; every third weight is 0",
        _zero_rows,
    ),
    "single": ("one large element a row", _single),
    "deep": ("gates from -1e4 to 1e4: sigmoid underflows, exp(-z) overflows", _deep),
    "large": ("rows of 2^10", _scaled(10)),
    "mixed": ("rows of sizes from 2^-10 to 2^8", _mixed),
}


class GatedNormProblem(Canonical):
    """One problem.

    Args:
        B, T, H, V: rows are B T H, each of V.
        rank: axes of x and gate as the function gets them.
        eps: inside the root.
        activation: silu or sigmoid.
        value: a key of REGIMES.
    """

    op: Literal["gated_rms_norm"] = "gated_rms_norm"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int = 1
    B: int = Field(default=1, ge=1)
    T: int = Field(ge=1)
    H: int = Field(default=1, ge=1)
    V: int = Field(ge=1)
    rank: Literal[2, 3, 4] = 4
    eps: float = Field(default=1e-6, gt=0)
    activation: Literal["silu", "sigmoid"] = "silu"
    value: Literal["normal", "small", "zero-rows", "single", "deep", "large", "mixed"] = "normal"

    @property
    def regime(self) -> str:
        return f"{self.value}, {self.activation}"

    @property
    def stem(self) -> str:
        shape = f"B{self.B}T{self.T}H{self.H}V{self.V}-rank{self.rank}"
        return f"gated_rms_norm-{self.dtype}-{shape}-eps{self.eps:g}-{self.value}-{self.activation}"

    def inputs(self) -> GatedNormCall:
        def drawn(name: str, *shape: int) -> Tensor:
            return torch.from_numpy(Stream(self.seed, self.op, name).normal(*shape))

        shape = (self.B, self.T, self.H, self.V)
        x, gate = REGIMES[self.value][1](drawn("x", *shape), drawn("gate", *shape))
        cast: dict[str, Any] = {"dtype": TORCH[self.dtype]}
        weight = 1 + drawn("weight", self.V) / 2
        if self.value == "zero-rows":
            # A backward that divides y by the weight to recover the normalised row is wrong there.
            weight[::3] = 0.0
        return GatedNormCall(
            x.to(**cast), gate.to(**cast), weight.to(**cast), self.eps, self.activation, self.rank
        )
