"""Regimes of logits and values, each for a fault that it exposes.

Logits follow a pattern over the keys in one column of q and k, beside normal numbers in all others:
the last column, which is no value where rows of a cache are keys and values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

Logits = Literal[
    "normal",
    "flat",
    "zero",
    "equal",
    "peaked",
    "sharp",
    "first",
    "last",
    "edges",
    "rising",
    "falling",
    "high",
    "low",
    "heads",
    "twins",
]
Values = Literal["normal", "ones", "onehot", "cancelling", "large", "tiny"]
TILE: Final = 64
WINNER: Final = 24.0
STEP: Final = 0.75
"""Just above ln 2: a maximum that rises with every key by more than a power of two."""
SHIFT: Final = 1000.0
STEEPEST: Final = 600.0
"""Logits of a ramp stay within it: fp16 has to hold the factors."""


def _nothing(keys: Tensor) -> Tensor:
    return torch.zeros_like(keys)


def _at(keys: Tensor, *places: int) -> Tensor:
    return sum(((keys == place) * WINNER for place in places), torch.zeros_like(keys))


def _edges(keys: Tensor) -> Tensor:
    return ((keys % TILE == TILE - 1) | (keys % TILE == 0)) * WINNER


def _ramp(keys: Tensor) -> Tensor:
    return keys * min(STEP, STEEPEST / max(len(keys), 1))


@dataclass(frozen=True)
class LogitRegime:
    """What logits look like.

    Args:
        about: in words.
        spread: their standard deviation at the default scale, beside the pattern.
        pattern: of the keys' numbers, in float64.
        heads: whether every head has another multiple of the pattern.
    """

    about: str
    spread: float = 1.0
    pattern: Callable[[Tensor], Tensor] = _nothing
    heads: bool = False


REGIMES: Final[Mapping[str, LogitRegime]] = {
    "normal": LogitRegime("standard deviation 1"),
    "flat": LogitRegime("standard deviation 0.05: LSE near ln n", 0.05),
    "zero": LogitRegime("q = 0: o is the mean of v, LSE is ln n", 0.0),
    "equal": LogitRegime("every key the same: o is the mean of v"),
    "peaked": LogitRegime("standard deviation 8: a few keys have all weight", 8.0),
    "sharp": LogitRegime("standard deviation 100: one key has all weight", 100.0),
    "first": LogitRegime("the first key wins", 1.0, lambda keys: _at(keys, 0)),
    "last": LogitRegime("the last key wins", 1.0, lambda keys: _at(keys, len(keys) - 1)),
    "edges": LogitRegime("keys at the edges of tiles win", 1.0, _edges),
    "rising": LogitRegime("every key doubles the maximum: rescaling throughout", 0.05, _ramp),
    "falling": LogitRegime("the maximum is the first key's", 0.05, lambda keys: -_ramp(keys)),
    "high": LogitRegime("all logits near 1000", 1.0, lambda keys: torch.full_like(keys, SHIFT)),
    "low": LogitRegime("all logits near -1000", 1.0, lambda keys: torch.full_like(keys, -SHIFT)),
    "heads": LogitRegime(
        "heads shifted apart", 1.0, lambda keys: torch.full_like(keys, WINNER), heads=True
    ),
    "twins": LogitRegime(
        "two keys share all weight", 1.0, lambda keys: _at(keys, 0, len(keys) // 2)
    ),
}


def shaped(logits: str, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [s_q, H, d_k] and k [s_k, h_kv, d_k] of normal numbers, made to have such logits."""
    regime, (q, k) = REGIMES[logits], (q * REGIMES[logits].spread, k.clone())
    if logits == "equal":
        k[:] = k[:1]
    pattern = regime.pattern(torch.arange(len(k), dtype=torch.float64))
    if not bool(pattern.any()):
        return q, k
    factor = (float(pattern.abs().max()) / scale) ** 0.5
    heads = torch.linspace(-1, 1, q.shape[1], dtype=torch.float64) if regime.heads else 1.0
    q[..., -1] = factor * heads
    k[..., -1] = (pattern / (factor * scale))[:, None]
    return q, k


def _onehot(v: Tensor) -> Tensor:
    columns = torch.arange(len(v)) % v.shape[-1]
    return torch.nn.functional.one_hot(columns, v.shape[-1]).to(v.dtype)[:, None].expand_as(v)


def _cancelling(v: Tensor) -> Tensor:
    signs = 1 - 2.0 * (torch.arange(len(v)) % 2)
    return signs[:, None, None] * (1 + v * 2.0**-6)


VALUES: Final[Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]] = {
    "normal": ("ordinary values", lambda v: v),
    "ones": ("all 1: o is the sum of the weights", torch.ones_like),
    "onehot": ("o is the weights themselves", _onehot),
    "cancelling": ("signs alternate from key to key", _cancelling),
    "large": ("values of 2^10", lambda v: v * 2.0**10),
    "tiny": ("values of 2^-10", lambda v: v * 2.0**-10),
}
