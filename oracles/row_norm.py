"""Rows of q and k that a kernel normalises itself: what it gets, and what that stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import torch
from torch import Tensor

from oracles.codecs import Codec
from oracles.head_order import head_numbers

EPSILON: Final = 1e-6
"""Inside the root, where nothing else is said, as the published kernels have it."""
POWERS: Final = (2, -9, 1, -7, 3)
"""Rows of key head h are multiplied by 2 to this one of them: norms at which a missing
normalisation shows, and, of every second head, the epsilon."""
LONG: Final = (9, 12)
"""The same for rows whose sum of squares fp16 does not hold. Forward alone: `rows` does not find
them again."""
GIVEN: Final = "given"
_NAME: Final = re.compile(r"l2norm\((?P<eps>[^,]+)(?P<stored>,stored)?\)")


@dataclass(frozen=True)
class RowNorm:
    """The normalisation of the rows [..., H, K] of q and k.

    Math: 6; y = x / sqrt(|x|^2 + eps). x is q, or k, times a power of two of the key head: exact.
    It is fp32, bf16 or fp16: x of fp64 is not found again from y.

    Args:
        eps: the epsilon.
        stored: whether the kernel stores y in the format of x before it goes on.
        powers: of two, by key head.
    Raises:
        ValueError: an epsilon that is no positive number.
    """

    eps: float = EPSILON
    stored: bool = False
    powers: tuple[int, ...] = POWERS

    def __post_init__(self) -> None:
        if not 0 < self.eps < torch.inf:
            raise ValueError(f"norm_eps: wanted a positive number, got {self.eps}")

    @property
    def name(self) -> str:
        """The word for it in the name of a contract; `norm_of` reads it back."""
        return f"l2norm({self.eps!r}{',stored' if self.stored else ''})"

    def there(self, rows: Tensor) -> Tensor:
        """x of rows [..., H, K]."""
        heads = head_numbers(rows.shape[-2], rows.device) % len(self.powers)
        powers = torch.tensor(self.powers, dtype=torch.float64, device=rows.device)[heads]
        return rows * torch.exp2(powers)[:, None]

    def normalised(self, x: Tensor) -> Tensor:
        """y."""
        return x * self._rate(x)

    def rows(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """x, and 1 / sqrt(|x|^2 + eps) [..., H, 1], of y in float64.

        Math: 1 - |y|^2 = eps / (|x|^2 + eps). x is a number of fp32, so that rounding to it finds
        x itself.
        """
        rate = ((1 - y.square().sum(-1, keepdim=True)).clamp(min=0.0) / self.eps).sqrt()
        x = (y / rate).float().double()
        return x, self._rate(x)

    def gradient(self, dy: Tensor, y: Tensor, rate: Tensor) -> Tensor:
        """dL/dx of dL/dy."""
        return rate * (dy - y * (y * dy).sum(-1, keepdim=True))

    def _rate(self, x: Tensor) -> Tensor:
        return (x.square().sum(-1, keepdim=True) + self.eps).rsqrt()

    @cached_property
    def codec(self) -> Codec:
        """The same as a convention of q and k."""
        return Codec(self.there, self.normalised, _no_slope)


def _no_slope(rows: Tensor) -> Tensor:
    # A row is normalised as a whole: whoever differentiates takes `gradient`.
    raise NotImplementedError(f"rows of {rows.shape[-1]} elements have no slope of each")


@lru_cache(maxsize=64)
def norm_of(name: str) -> RowNorm | None:
    """The normalisation of that name; None where rows come as they are.

    Raises:
        ValueError: neither.
    """
    match = _NAME.fullmatch(name)
    if match is not None:
        return RowNorm(float(match["eps"]), match["stored"] is not None)
    if name == GIVEN:
        return None
    raise ValueError(f"qk: wanted given, l2norm or l2norm-stored, got {name!r}")
