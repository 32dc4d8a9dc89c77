"""Regimes of logits and values, each for a fault that it exposes.

Logits follow a pattern over the keys in one column of q and k, beside normal numbers in all others:
the last column, which is no value where rows of a cache are keys and values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

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
    "hill",
    "high",
    "low",
    "heads",
    "twins",
    "plateau",
    "lowest",
    "brink",
    "deepest",
    "fine",
    "special",
]
Values = Literal[
    "normal", "ones", "onehot", "cancelling", "large", "tiny", "beside", "halves", "special"
]
TILE: Final = 64
WINNER: Final = 24.0
STEP: Final = 0.75
"""Just above ln 2: a maximum that rises with every key by more than a power of two."""
SLOPE: Final = 0.04
"""Of a hill: 3.7 powers of two in a block of 64 keys, 7.4 in one of 128, less than the 8 by which
maxima may lag. A lag that adds up leaves fp16 after 290 keys, fp32 after 2,220."""
SHIFT: Final = 1000.0
BRINK: Final = 83.5
"""exp(88.7) is the largest number of fp32, and exp(83.5) a 183rd of it. A kernel that left out the
maximum where all scores were below 84 was accepted."""
LOWEST: Final = -64000.0
"""Below -5e4 and -1e4, of which kernels make the maximum of no keys; to base 2 too. Factors of it
fit fp16."""
DEEPEST: Final = -1e5
"""Below -65,504, the least number of fp16, at which a running maximum may start. Not in fp16:
scores that are stored in it are infinite there."""
DEPTH: Final = 16.5
"""Of a plateau, for one head: thresholds that kernels skip blocks below are at 10 to 16, of which
2,000 keys together have a weight of 2e-4, and of 5 % at 10.7."""
FINE: Final = 13
"""Binary digits that q is smaller by and k larger: a scale that is multiplied into q makes
subnormals of fp16 of it, a power of two too."""
STEEPEST: Final = 600.0
"""Logits of a ramp stay within it: fp16 has to hold the factors."""


def _nothing(keys: Tensor) -> Tensor:
    return torch.zeros_like(keys)


def _at(keys: Tensor, *places: int) -> Tensor:
    return sum(((keys == place) * WINNER for place in places), torch.zeros_like(keys))


def _peaks(count: int) -> Tensor:
    """Keys in the first, the middle and the last block of any size."""
    return torch.tensor([0, count // 2, count - 1])[: 3 * (count > 0)]


def _plateau(keys: Tensor) -> Tensor:
    """Kernels go through blocks from the first or from the last one, with or without splits."""
    return torch.full_like(keys, -DEPTH).index_fill(0, _peaks(len(keys)), 0.0)


def _edges(keys: Tensor) -> Tensor:
    return ((keys % TILE == TILE - 1) | (keys % TILE == 0)) * WINNER


def _ramp(keys: Tensor) -> Tensor:
    return keys * min(STEP, STEEPEST / max(len(keys), 1))


def _hill(keys: Tensor) -> Tensor:
    """Kernels go through blocks from the first or from the last one."""
    return -SLOPE * (keys - len(keys) // 2).abs()


DEVIATIONS: Final = 8.0
"""Of normal numbers, beyond which there is none: one in 10^15."""


@dataclass(frozen=True)
class LogitRegime:
    """What logits look like.

    Args:
        about: in words.
        spread: their standard deviation at the default scale, beside the pattern.
        pattern: of the keys' numbers, in float64.
        heads: the multiple of the pattern that the first and the last head have.
        digits: binary ones that q is smaller by and k larger.
    """

    about: str
    spread: float = 1.0
    pattern: Callable[[Tensor], Tensor] = _nothing
    heads: tuple[float, float] = (1.0, 1.0)
    digits: int = 0


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
    "hill": LogitRegime(
        "the maximum rises by less than 8 powers of two a block, up to the middle", 0.05, _hill
    ),
    "high": LogitRegime("all logits near 1000", 1.0, lambda keys: torch.full_like(keys, SHIFT)),
    "low": LogitRegime("all logits near -1000", 1.0, lambda keys: torch.full_like(keys, -SHIFT)),
    "heads": LogitRegime(
        "heads shifted apart", 1.0, lambda keys: torch.full_like(keys, WINNER), heads=(-1.0, 1.0)
    ),
    "twins": LogitRegime(
        "two keys share all weight", 1.0, lambda keys: _at(keys, 0, len(keys) // 2)
    ),
    "plateau": LogitRegime(
        "three keys, and all others far below them, which count together",
        0.05,
        _plateau,
        heads=(0.65, 1.0),
    ),
    "brink": LogitRegime(
        "all logits near 83.5: fp32 holds their exponentials, and no sum of hundreds",
        0.05,
        lambda keys: torch.full_like(keys, BRINK),
    ),
    "lowest": LogitRegime(
        "all logits near -64,000", 1.0, lambda keys: torch.full_like(keys, LOWEST)
    ),
    "deepest": LogitRegime(
        "all logits near -100,000, in no 16-bit scores of fp16",
        1.0,
        lambda keys: torch.full_like(keys, DEEPEST),
    ),
    "fine": LogitRegime("small q and large k", digits=FINE),
    "special": LogitRegime(
        "rows of q and k that are 0, -0, one-hot or copies of others, beside ordinary ones"
    ),
}


def usual(dtype: str) -> list[str]:
    """Regimes of random problems of a format, in order."""
    return [name for name in REGIMES if name != "deepest" or dtype != "fp16"]


def in_range(found: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Those problems of a format, by name, whose regime is one of `usual`."""
    return {name: one for name, one in found.items() if one.logits in usual(dtype)}


def shaped(logits: str, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [s_q, H, d_k] and k [s_k, h_kv, d_k] of normal numbers, made to have such logits."""
    if logits == "special":
        return _special_queries(q), _special_keys(k)
    regime, (q, k) = REGIMES[logits], (q * REGIMES[logits].spread, k.clone())
    q, k = q * 2.0**-regime.digits, k * 2.0**regime.digits
    if logits == "equal":
        k[:] = k[:1]
    pattern = regime.pattern(torch.arange(len(k), dtype=torch.float64))
    if not bool(pattern.any()):
        return q, k
    factor = (float(pattern.abs().max()) / scale) ** 0.5
    heads = torch.linspace(*regime.heads, q.shape[1], dtype=torch.float64)
    q[..., -1] = factor * heads
    k[..., -1] = (pattern / (factor * scale))[:, None]
    return q, k


def _turns(rows: Tensor, period: int) -> Tensor:
    """[rows, heads] 0 to period - 1 in turn, each head two rows ahead of the next."""
    row, head = torch.arange(rows.shape[0])[:, None], torch.arange(rows.shape[1])
    return (row + 2 * head) % period


def _special_keys(k: Tensor) -> Tensor:
    """Some in one head, some in all of them, the last two among these, and all of a third head. A
    key of zeros was taken for padding.
    """
    turn, count, found = _turns(k, 9), len(k), k.clone()
    onehot = torch.nn.functional.one_hot(torch.arange(count) % k.shape[2], k.shape[2])
    found = torch.where((turn == 3)[..., None], found.roll(-1, 0), found)
    found = torch.where((turn == 2)[..., None], onehot[:, None].to(k.dtype), found)
    row = torch.arange(count)
    everywhere = (row % 7 == 5) | ((row >= count - 2) & (count > 4))
    found[(turn == 0) | everywhere[:, None]] = 0.0
    found[turn == 1] = -0.0
    found[:, 2:3] = 0.0
    return found


def _special_queries(q: Tensor) -> Tensor:
    """Every third token has the same in all heads; of every head some are 0."""
    found = q.clone()
    found[2::3] = found[2::3, :1]
    found[_turns(q, 4) == 3] = 0.0
    return found


def largest_product(logits: str, s_k: int, d_k: int, scale: float) -> float:
    """What no modulus of <q, k>, before it is multiplied by the scale, exceeds."""
    regime = REGIMES[logits]
    pattern = regime.pattern(torch.arange(max(s_k, 1), dtype=torch.float64)).abs()
    of_pattern = float(pattern.max()) * max(map(abs, regime.heads)) / scale
    return of_pattern + DEVIATIONS * regime.spread * d_k**0.5


def _onehot(v: Tensor) -> Tensor:
    columns = torch.arange(len(v)) % v.shape[-1]
    return torch.nn.functional.one_hot(columns, v.shape[-1]).to(v.dtype)[:, None].expand_as(v)


def _cancelling(v: Tensor) -> Tensor:
    signs = 1 - 2.0 * (torch.arange(len(v)) % 2)
    return signs[:, None, None] * (1 + v * 2.0**-6)


def _halves(v: Tensor) -> Tensor:
    """A factor that all keys have in common is in every partial sum of dq, and not in dq."""
    signs = 1 - 2.0 * (2 * torch.arange(len(v)) >= len(v))
    return signs[:, None, None] * (1 + v * 2.0**-6)


def _special_values(v: Tensor) -> Tensor:
    """Of each head some, and all of the first of three heads."""
    turn, found = _turns(v, 5), v.clone()
    found[turn == 0], found[turn == 1] = 0.0, -0.0
    if v.shape[1] > 2:
        found[:, 0] = 0.0
    return found


def _beside(v: Tensor) -> Tensor:
    """Those of one sign do not cancel."""
    large = v.abs() * 2.0**8
    return large.index_copy(0, _peaks(len(v)), v[_peaks(len(v))])


VALUES: Final[Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]] = {
    "normal": ("ordinary values", lambda v: v),
    "ones": ("all 1: o is the sum of the weights", torch.ones_like),
    "onehot": ("o is the weights themselves", _onehot),
    "cancelling": ("signs alternate from key to key", _cancelling),
    "large": ("values of 2^10", lambda v: v * 2.0**10),
    "tiny": ("values of 2^-10", lambda v: v * 2.0**-10),
    "beside": ("ordinary values of the first, middle and last key, large ones of others", _beside),
    "halves": ("of one sign in the first half of the keys, of the other in the second", _halves),
    "special": ("rows that are 0 or -0, and a head of them, beside ordinary ones", _special_values),
}
