"""Problems of the short convolution, and regimes of values, each for a fault it exposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.cotangents import Loss, of_loss
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.pointwise.short_conv import ShortConvCall

Size = Field(ge=1)
UNREAD: Final = 1024.0
"""How much larger column 0 of a state is than all others: a kernel that reads it is wrong by
that."""
FLAT: Final = -1.2784645
"""Where the slope of SiLU is 0."""
DEEP: Final = (-110.0, -95.0, -88.0, -60.0, -30.0, -16.0, -5.5, 13.5, 20.0, 95.0)
"""Pre-activations where exp(-z) or sigmoid(z) leaves fp32, where 1 - s rounds away or is 1e-6, and
on the positive side."""
Drawn = tuple[Tensor, Tensor, Tensor]
"""Values in float64: of x and states [rows, D], of the weight [D, W] and of the bias [D]."""


def _normal(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
    return x, w / 2, b / 2


def _around(target: Tensor) -> Callable[[Tensor, Tensor, Tensor], Drawn]:
    """Pre-activations near the targets, channel by channel: the newest tap carries them."""

    def drawn(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
        w = w * 2.0**-7
        w[:, -1] = target[torch.arange(len(w)) % len(target)]
        return 1 + x * 2.0**-6, w, b * 2.0**-7

    return drawn


def _cancelling(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
    """Weights that sum to nearly 0 on inputs that hardly change."""
    w = w.clone()
    w[:, -1] -= w.sum(-1)
    return 1 + x * 2.0**-8, w, b * 2.0**-8


def _scaled(exponent: int) -> Callable[[Tensor, Tensor, Tensor], Drawn]:
    return lambda x, w, b: (x * 2.0**exponent, w / 2, b * 2.0**exponent)


def _sparse(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
    return torch.where(x.abs() < 1, 0.0, x), torch.where(w.abs() < 0.5, 0.0, w), torch.zeros_like(b)


def _spike(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
    """One row of 2^12, which fp16 holds: nothing of it is in rows W tokens on."""
    x = x.clone()
    x[len(x) // 3] *= 2.0**12
    return x, w, b


def _zero_rows(x: Tensor, w: Tensor, b: Tensor) -> Drawn:
    """Runs of rows that are 0, longer than the taps, at the beginning and the end of sequences too;
    channels of 0, channels without taps, and taps of 0.
    """
    x, w, b = x.clone(), w / 2, b / 2
    x[torch.arange(len(x)) % 10 < 5] = 0.0
    x[:, 4::5], w[3::5], b[::3] = 0.0, 0.0, 0.0
    w[1::5, 0], w[2::5, -1] = 0.0, -0.0
    return x, w, b


REGIMES: Final[Mapping[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Drawn]]]] = {
    "normal": ("ordinary values", _normal),
    "flat": (
        "z near -1.278, where the slope of SiLU is 0",
        _around(torch.tensor([FLAT], dtype=torch.float64)),
    ),
    "deep": (
        "z from -110 to 95: sigmoid underflows, exp(-z) overflows, y must go to -0",
        _around(torch.tensor(DEEP, dtype=torch.float64)),
    ),
    "cancelling": ("taps cancel: |sum w x| far below sum |w x|", _cancelling),
    "large": ("inputs of 2^8: sums keep no digits below", _scaled(8)),
    "tiny": ("inputs of 2^-8", _scaled(-8)),
    "sparse": ("most inputs and weights 0", _sparse),
    "spike": ("one row 2^12 times all others", _spike),
    "zero-rows": ("rows of x, channels and taps that are 0, beside ordinary ones", _zero_rows),
}


class ShortConvProblem(Canonical):
    """One problem.

    Args:
        B, T, D, W: batch entries, rows, channels, taps; B = 1 with lengths.
        lengths: of the sequences of a pack; rows past their sum are nobody's. None: every batch
            entry is one.
        bias: whether there is one; state: random or absent.
        activation: silu or none.
        value: a key of REGIMES.
        loss: uneven, where incoming gradients of channels and rows differ by powers of two.
    """

    op: Literal["short_conv"] = "short_conv"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int = 1
    B: int = Field(default=1, ge=1)
    T: int = Size
    D: int = Size
    W: int = Field(default=4, ge=2)
    lengths: tuple[int, ...] | None = None
    bias: bool = False
    state: Literal["random", "absent"] = "absent"
    activation: Literal["silu", "none"] = "silu"
    value: Literal[
        "normal", "flat", "deep", "cancelling", "large", "tiny", "sparse", "spike", "zero-rows"
    ] = "normal"
    loss: Loss | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lengths is not None and (
            self.B != 1 or min(self.lengths, default=0) < 0 or not 0 < sum(self.lengths) <= self.T
        ):
            raise ValueError(
                f"lengths: wanted B = 1 and lengths >= 0 of sum 1 to T = {self.T}, got"
                f" {self.lengths} with B = {self.B}"
            )
        return self

    @property
    def stateful(self) -> bool:
        return self.state == "random"

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def N(self) -> int:
        return self.B if self.lengths is None else len(self.lengths)

    @property
    def shortest(self) -> int:
        """Tokens of the shortest sequence."""
        return min(self.lengths or (self.T,))

    @property
    def regime(self) -> str:
        return f"{self.value}, {self.activation}"

    @property
    def stem(self) -> str:
        pack = "" if self.lengths is None else f"N{self.N}"
        beside = "".join(
            f"-{name}" for name, there in (("bias", self.bias), ("state", self.stateful)) if there
        )
        sizes = f"B{self.B}T{self.T}D{self.D}W{self.W}"
        ends = f"{self.value}-{self.activation}{of_loss(self.loss)}"
        return f"short_conv-{self.dtype}-{sizes}{pack}{beside}-{ends}"

    def inputs(self) -> ShortConvCall:
        def drawn(name: str, *shape: int) -> Tensor:
            return torch.from_numpy(Stream(self.seed, self.op, name).normal(*shape))

        rows = drawn("x", self.B * self.T, self.D)
        columns = drawn("state", self.N * self.W, self.D)
        together, weight, bias = REGIMES[self.value][1](
            torch.cat((rows, columns)), drawn("weight", self.D, self.W), drawn("bias", self.D)
        )
        x, state = together.split((len(rows), len(columns)))
        state = state.view(self.N, self.W, self.D).mT.contiguous()
        state[..., 0] = UNREAD * (1 + columns.view(self.N, self.W, self.D)[:, 0].abs())
        if self.lengths is None:
            offsets = None
        else:
            offsets = torch.tensor([0, *self.lengths]).cumsum(0).to(torch.int32)
        cast: dict[str, Any] = {"dtype": TORCH[self.dtype]}
        return ShortConvCall(
            x.view(self.B, self.T, self.D).to(**cast),
            weight.to(**cast),
            bias.to(**cast) if self.bias else None,
            state.to(**cast) if self.stateful else None,
            offsets,
            self.activation,
        )
