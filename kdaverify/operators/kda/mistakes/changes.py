"""What a tensor can be off by: factors at its place, and its neighbours in each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.kda.mistakes.quantities import Quantities


class Kind(Enum):
    """What the last axes of a tensor are."""

    KEYS = auto()
    """[C, K] a row of key channels for every token."""
    GATES = auto()
    """[C, K] exponents, or their gradients: they add up where others multiply."""
    VALUES = auto()
    """[C, V] a row of columns for every token."""
    MATRIX = auto()
    """[C, C] a number for every pair of tokens."""
    STATE = auto()
    """[K, V]."""
    SCALAR = auto()
    """[C] a number for every token."""


Apply = Callable[[Tensor, Quantities], Tensor]


@dataclass(frozen=True)
class Change:
    """One way to be wrong.

    Args:
        words: what the tensor is, in words, after "is".
        apply: (right tensor, quantities) -> wrong tensor, of the same shape.
    """

    words: str
    apply: Apply


AS_IT_IS: Final = Change("", lambda x, _: x)
_KEYS: Final[dict[str, tuple[str, str, Callable[[Quantities], Tensor]]]] = {
    "g": ("exp(-g) of its token: one decay is missing",
          "exp(g) of its token: it is decayed once too often", lambda q: q.g),
    "next": ("exp(-g) of the next token", "exp(g) of the next token", lambda q: q.next),
    "previous": ("exp(-g) of the token before", "exp(g) of the token before", lambda q: q.previous),
    "last": ("exp(-g) of the last token: the last decay is missing",
             "exp(g) of the last token: the last decay is applied twice", lambda q: q.last),
    "G": ("exp(-G), the decay since the chunk's start: that decay is missing",
          "exp(G), the decay since the chunk's start: that decay is applied once too often",
          lambda q: q.G),
    "end": ("exp(G - G_last), the decay to the chunk's end: that decay is missing",
            "exp(G_last - G), the decay to the chunk's end: that decay is applied once too often",
            lambda q: q.to_the_end),
    "total": ("exp(-G_last), the decay of the whole chunk: that decay is missing",
              "exp(G_last), the decay of the whole chunk: that decay is applied once too often",
              lambda q: q.total),
}  # fmt: skip
_CONSTANTS: Final[tuple[tuple[str, float], ...]] = (
    ("0", 0.0),
    ("negated", -1.0),
    ("twice what it should be", 2.0),
    ("half of what it should be", 0.5),
    ("four times what it should be", 4.0),
    ("a quarter of what it should be", 0.25),
    ("off by 1/ln 2: base 2 is taken for base e", 1 / math.log(2)),
    ("off by ln 2: base e is taken for base 2", math.log(2)),
)


def changes(kind: Kind) -> Iterator[Change]:
    """Every change that a tensor of a kind can have, the simplest first."""
    yield from (
        Change(words, lambda x, _, factor=factor: x * factor) for words, factor in _CONSTANTS
    )
    yield Change("off by the scale: it is scaled once too often", lambda x, q: x * q.scale)
    yield Change("off by 1/scale: the scale is missing", lambda x, q: x / q.scale)
    yield Change("rounded to bf16", lambda x, _: FORMATS["bf16"].round(x))
    yield Change("rounded to fp16", lambda x, _: FORMATS["fp16"].round(x))
    yield from _BY_KIND[kind]()
    if kind not in (Kind.MATRIX, Kind.STATE):
        yield Change(
            "that of the first value head of its key head alone", lambda x, q: _heads(x, q, 0)
        )
        yield Change(
            "that of the last value head of its key head alone",
            lambda x, q: _heads(x, q, q.group - 1),
        )
    if kind is not Kind.STATE:
        yield Change("that of the token before", lambda x, _: _later(x, kind))
        yield Change("that of the next token", lambda x, _: _earlier(x, kind))
    yield Change("that of the head before", lambda x, _: x.roll(1, dims=1))
    yield Change("that of the next head", lambda x, _: x.roll(-1, dims=1))


def _decays(of: Callable[[Quantities, Tensor], Tensor]) -> Iterator[Change]:
    """Factors exp(-x) and exp(x), `of` making them fit the tensor."""
    for missing, twice, exponent in _KEYS.values():
        yield Change(f"off by {missing}", lambda x, q, e=exponent: x * of(q, (-e(q)).exp()))
        yield Change(f"off by {twice}", lambda x, q, e=exponent: x * of(q, e(q).exp()))


def _keys() -> Iterator[Change]:
    yield from _decays(lambda _, factor: factor)
    yield from _strengths(lambda beta: beta[..., None])
    yield Change("that of the channel before", lambda x, _: x.roll(1, dims=-1))
    yield Change("that of channel 0 in all channels", lambda x, _: x[..., :1].expand_as(x))
    yield from _edges(lambda x, rows: x.masked_fill(rows[..., None], 0.0))


def _gates() -> Iterator[Change]:
    yield Change("without the gate of its own token", lambda x, q: x - q.g)
    yield Change("with the gate of its token twice", lambda x, q: x + q.g)
    yield Change("that of the channel before", lambda x, _: x.roll(1, dims=-1))
    yield Change("that of channel 0 in all channels", lambda x, _: x[..., :1].expand_as(x))
    yield from _edges(lambda x, rows: x.masked_fill(rows[..., None], 0.0))


def _values() -> Iterator[Change]:
    yield from _strengths(lambda beta: beta[..., None])
    yield Change("that of the column before", lambda x, _: x.roll(1, dims=-1))
    yield from _edges(lambda x, rows: x.masked_fill(rows[..., None], 0.0))


def _matrices() -> Iterator[Change]:
    yield Change("without its diagonal", lambda x, _: x.tril(-1))
    yield Change("its diagonal alone", lambda x, _: x.diagonal(dim1=-2, dim2=-1).diag_embed())
    yield Change(
        "twice on its diagonal", lambda x, _: x + x.diagonal(dim1=-2, dim2=-1).diag_embed()
    )
    yield Change("transposed", lambda x, _: x.transpose(-1, -2))
    yield from _strengths(lambda beta: beta[..., None])
    for change in _strengths(lambda beta: beta[..., None, :]):
        yield Change(f"{change.words} (that of the earlier token of a pair)", change.apply)
    yield Change(
        "inverted in sign below its diagonal",
        lambda x, _: 2 * x.diagonal(dim1=-2, dim2=-1).diag_embed() - x,
    )


def _states() -> Iterator[Change]:
    for name in ("last", "total"):
        missing, twice, exponent = _KEYS[name]
        yield Change(
            f"off by {missing}", lambda x, q, e=exponent: x * (-e(q)).exp().transpose(-1, -2)
        )
        yield Change(f"off by {twice}", lambda x, q, e=exponent: x * e(q).exp().transpose(-1, -2))
    yield Change(
        "transposed", lambda x, _: x.transpose(-1, -2) if x.shape[-1] == x.shape[-2] else x
    )
    yield Change("decayed along its columns instead of its rows", _by_columns)
    yield Change(
        "off by exp(G_last (1/ln 2 - 1)): it decays in base 2",
        lambda x, q: x * _power(q, 1 / math.log(2) - 1),
    )
    yield Change(
        "off by exp(G_last (ln 2 - 1)): gates of base 2 are taken for natural ones",
        lambda x, q: x * _power(q, math.log(2) - 1),
    )


def _by_columns(x: Tensor, q: Quantities) -> Tensor:
    square = x.shape[-1] == x.shape[-2]
    return x * (-q.total).exp().transpose(-1, -2) * q.total.exp() if square else x


def _power(q: Quantities, exponent: float) -> Tensor:
    return (exponent * q.total).exp().transpose(-1, -2)


def _scalars() -> Iterator[Change]:
    yield from _strengths(lambda beta: beta)
    yield Change("1", lambda x, _: torch.ones_like(x))
    yield from _edges(lambda x, rows: x.masked_fill(rows, 0.0))


def _strengths(of: Callable[[Tensor], Tensor]) -> Iterator[Change]:
    yield Change("off by beta: beta is applied once too often", lambda x, q: x * of(q.beta))
    yield Change(
        "off by 1/beta: beta is missing",
        lambda x, q: torch.where(of(q.beta) == 0, x, x / of(q.beta)),
    )
    yield Change("off by 1 - beta", lambda x, q: x * (1 - of(q.beta)))
    yield Change(
        "off by 1/beta - 1: 1 - beta is taken for beta",
        lambda x, q: torch.where(of(q.beta) == 0, x, x / of(q.beta) - x),
    )


def _edges(cleared: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Change]:
    yield Change("0 at the first token of a chunk", lambda x, q: cleared(x, _row(q, 0)))
    yield Change("0 at the last token of a chunk", lambda x, q: cleared(x, _last_row(q)))


def _heads(x: Tensor, q: Quantities, place: int) -> Tensor:
    """0 in all value heads but one of every key head."""
    mine = torch.arange(x.shape[1]) % q.group == place
    return x * mine.view(-1, *[1] * (x.ndim - 2))


def _row(q: Quantities, row: int) -> Tensor:
    at = torch.zeros_like(q.valid[..., 0])
    at[..., row] = True
    return at


def _last_row(q: Quantities) -> Tensor:
    valid = q.valid[..., 0]
    return valid & ~torch.cat((valid[..., 1:], torch.zeros_like(valid[..., :1])), dim=-1)


def _axis(kind: Kind) -> int:
    return -1 if kind is Kind.SCALAR else -2


def _later(x: Tensor, kind: Kind) -> Tensor:
    axis = _axis(kind)
    rows = x.shape[axis]
    return torch.cat(
        (torch.zeros_like(x.narrow(axis, 0, 1)), x.narrow(axis, 0, rows - 1)), dim=axis
    )


def _earlier(x: Tensor, kind: Kind) -> Tensor:
    axis = _axis(kind)
    rows = x.shape[axis]
    return torch.cat(
        (x.narrow(axis, 1, rows - 1), torch.zeros_like(x.narrow(axis, 0, 1))), dim=axis
    )


_BY_KIND: Final = {
    Kind.KEYS: _keys,
    Kind.GATES: _gates,
    Kind.VALUES: _values,
    Kind.MATRIX: _matrices,
    Kind.STATE: _states,
    Kind.SCALAR: _scalars,
}
