"""Problems of the gated RMSNorm, and regimes of values, each for a fault it exposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.cotangents import Loss, of_loss
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.pointwise.gated_norm import GatedNormCall

DEEP: Final = (
    -1e4, -110.0, -95.0, -88.0, -80.0, -30.0, -16.0, -5.5, -1.2784645, 0.0, 20.0, 95.0, 1e4,
)  # fmt: skip
"""Gates where exp(-z) or sigmoid(z) leaves fp32, where 1 - s rounds away, at the minimum of SiLU,
and on the positive side."""
Drawn = tuple[Tensor, Tensor, Tensor]
"""Values in float64: of x and gate [B, T, H, V] and of the weight [V]."""


def _normal(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    return x, z, 1 + w / 2


def _centred(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    """A norm that takes weights around 0 for weights stored less 1 adds 1 to these."""
    return x, z, w / 8


def _rows(x: Tensor) -> Tensor:
    return torch.arange(x.numel() // x.shape[-1]).view(*x.shape[:-1], 1)


def _zero_rows(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    """A backward that divides y by the weight to recover the normalised row is wrong there, and one
    that divides it by the gate.
    """
    at = torch.arange(len(w)) % 3 == 0
    x, z = torch.where(_rows(x) % 2 == 0, 0.0, x), torch.where(_rows(z) % 3 == 1, 0.0, z)
    return x, z, torch.where(at, 0.0, 1 + w / 2)


def _closed(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    """Every gate of the call: silu has a slope of 1/2 there, and sigmoid is 1/2."""
    return _normal(x, torch.zeros_like(z), w)


def _single(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    """One large element a row, at another place in each."""
    at = torch.arange(x.shape[-1]) == _rows(x) % x.shape[-1]
    return _normal(torch.where(at, 2.0**8, x * 2.0**-6), z, w)


def _deep(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    target = torch.tensor(DEEP, dtype=torch.float64)
    at = torch.arange(z.numel()) % len(target)
    return _normal(x, target[at].view(z.shape) * (1 + z * 2.0**-10), w)


def _scaled(exponent: int) -> Callable[[Tensor, Tensor, Tensor], Drawn]:
    return lambda x, z, w: _normal(x * 2.0**exponent, z, w)


def _mixed(x: Tensor, z: Tensor, w: Tensor) -> Drawn:
    """Rows from 2^-10 to 2^8: each has its own root."""
    return _normal(x * torch.exp2((_rows(x) % 19 - 10).double()), z, w)


REGIMES: Final[Mapping[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Drawn]]]] = {
    "normal": ("ordinary values", _normal),
    "small": ("rows whose mean square is as large as eps", _scaled(-9)),
    "zero-rows": (
        "every other row is 0: eps alone is under the root; so are a third of weights and gates",
        _zero_rows,
    ),
    "closed": ("every gate exactly 0", _closed),
    "single": ("one large element a row", _single),
    "deep": ("gates from -1e4 to 1e4: sigmoid underflows, exp(-z) overflows", _deep),
    "large": ("rows of 2^10", _scaled(10)),
    "mixed": ("rows of sizes from 2^-10 to 2^8", _mixed),
    "centred-weight": ("weights of both signs, near 0", _centred),
}


class GatedNormProblem(Canonical):
    """One problem.

    Args:
        B, T, H, V: rows are B T H, each of V.
        rank: axes of x and gate as the function gets them.
        eps: inside the root.
        activation: silu or sigmoid.
        value: a key of REGIMES.
        loss: uneven, where incoming gradients of heads and tokens differ by powers of two.
        first: gate, where it multiplies x before the norm; None: it multiplies what is normalised.
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
    value: Literal[
        "normal",
        "small",
        "zero-rows",
        "closed",
        "single",
        "deep",
        "large",
        "mixed",
        "centred-weight",
    ] = "normal"
    loss: Loss | None = None
    first: Literal["gate"] | None = None

    @property
    def regime(self) -> str:
        return f"{self.value}, {self.activation}"

    @property
    def stem(self) -> str:
        shape = f"B{self.B}T{self.T}H{self.H}V{self.V}-rank{self.rank}"
        order = "" if self.first is None else "-gate-first"
        rows = f"{self.dtype}-{shape}-eps{self.eps:g}{order}"
        return f"gated_rms_norm-{rows}-{self.value}-{self.activation}{of_loss(self.loss)}"

    def inputs(self) -> GatedNormCall:
        def drawn(name: str, *shape: int) -> Tensor:
            return torch.from_numpy(Stream(self.seed, self.op, name).normal(*shape))

        shape = (self.B, self.T, self.H, self.V)
        x, gate, weight = REGIMES[self.value][1](
            drawn("x", *shape), drawn("gate", *shape), drawn("weight", self.V)
        )
        cast: dict[str, Any] = {"dtype": TORCH[self.dtype]}
        return GatedNormCall(
            x.to(**cast),
            gate.to(**cast),
            weight.to(**cast),
            self.eps,
            self.activation,
            self.rank,
            self.first == "gate",
        )
