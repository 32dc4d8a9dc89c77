"""Faults of short convolutions that show at some sizes of axes alone."""

# pyright: basic
# Faults are lambdas in the place of typed parts.
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault
from kdaverify.faults.short_conv import (
    EVERY,
    RIGHT,
    Parts,
    Result,
    old_columns,
    shifted_in,
    summed,
)

UNROLLED: Final = 4
"""Taps of a loop that is written out."""
ENTRIES: Final = 16
"""Batch entries of a tile."""
TILE: Final = 1024
"""Tokens of a tile."""
PAIRED: Final = 128
"""Channels past which they are taken in pairs."""
TRANSFORMED: Final = 8192
"""Tokens from which on a transform pays."""
CHANNELS: Final = 4096
"""Of a block."""


def last_four(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """A window holds four tokens, however many taps there are."""
    more = max(0, w.shape[1] - UNROLLED)
    return summed(stream[more:], w[:, more:], b)


def first_biases(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Every block of channels has the first elements of the bias."""
    return summed(stream, w, None if b is None else b[torch.arange(len(b)) % CHANNELS])


def paired_biases(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Channels are taken in pairs, and an odd last one has the bias of the pair before it."""
    if b is None or len(b) <= PAIRED or len(b) % 2 == 0:
        return summed(stream, w, b)
    return summed(stream, w, torch.cat((b[:-1], b[-2:-1])))


def of_the_last_tile(before: Tensor, x: Tensor, W: int, y: Tensor) -> Tensor:
    """The program of the last tile has its own tokens, and the initial state."""
    return shifted_in(before, x[max(0, len(x) - 1) // TILE * TILE :], W, y)


@dataclass(frozen=True)
class SquareWeight(Parts):
    """A weight is turned where its first axis has the size of its taps."""

    def __call__(self, x: Tensor, weight: Tensor, *rest: Any) -> Result:
        square = weight.shape[0] == weight.shape[1]
        return Parts.__call__(self, x, weight.mT if square else weight, *rest)


@dataclass(frozen=True)
class TokensFirst(Parts):
    """A batch of as many entries as tokens is taken for [T, B, D]."""

    def __call__(self, x: Tensor, *rest: Any) -> Result:
        y, states = Parts.__call__(self, x, *rest)
        if x.shape[0] == x.shape[1] and rest[3] is None:
            y = Parts.__call__(self, x.transpose(0, 1), *rest)[0].transpose(0, 1)
        return y, states


@dataclass(frozen=True)
class SinglesOfAPack(Parts):
    """A pack of as many sequences as tokens is taken for first tokens, which have no history."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        _, cu, _ = options
        singles = cu is not None and len(cu) - 1 == x.shape[1]
        parts = self.replaced(history=lambda _, W, x: old_columns(None, W, x)) if singles else self
        y, _ = Parts.__call__(parts, x, weight, bias, *options)
        return y, Parts.__call__(self, x, weight, bias, *options)[1]


@dataclass(frozen=True)
class FirstEntries(Parts):
    """Sequences shorter than W have an own backward: dweight is that of one tile of entries."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        state, cu, act = options
        if cu is not None or x.shape[1] >= weight.shape[1] or len(x) <= ENTRIES:
            return Parts.__call__(self, x, weight, bias, *options)
        parts = list[Result]()
        for entries, w in ((slice(ENTRIES), weight), (slice(ENTRIES, None), weight.detach())):
            of = None if state is None else state[entries]
            parts.append(Parts.__call__(self, x[entries], w, bias, of, None, act))
        (y, states), (more, others) = parts
        return torch.cat((y, more)), torch.cat((states, others))


@dataclass(frozen=True)
class NumbersOfAByte(Parts):
    """Tokens of sequences whose numbers agree in a byte are those of one."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        state, cu, act = options
        y, states = Parts.__call__(self, x, weight, bias, *options)
        if cu is None:
            return y, states
        parts = list(y.split([*cu.diff().tolist(), x.shape[1] - int(cu[-1])], 1))
        for a, b in pairwise(cu.diff().nonzero().flatten().tolist()):
            if (b - a) % 256 == 0:
                both, of = x[:, cu[a] : cu[b + 1]], None if state is None else state[a : a + 1]
                whole, _ = Parts.__call__(self, both, weight, bias, of, None, act)
                parts[b] = whole[:, cu[b] - cu[a] :]
        return torch.cat(parts, 1), states


def transformed(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """8,192 tokens are convolved by a transform in fp32, whose errors are of the largest."""
    exact = summed(stream, w, b)
    if len(exact) < TRANSFORMED:
        return exact
    error = torch.fft.irfft(torch.fft.rfft(stream.float(), dim=0), n=len(stream), dim=0) - stream
    return exact + (summed(error.to(stream), w, None)).detach()


_conv = partial(Fault, operator="short_conv", stage="short_conv", dtypes=EVERY)
FAULTS: Final = (
    _conv("CONV-taps", "a window holds the last four tokens", "class: widths past those of models",
          "B", "more than four taps", ("y",), lambda _: RIGHT.replaced(take=last_four)),
    _conv("CONV-square", "a square weight is taken for [W, D]",
          "class: axes recognised by their size", "B", "as many channels as taps", ("y",),
          lambda _: SquareWeight(**vars(RIGHT))),
    _conv("CONV-entries", "a batch of as many entries as tokens is taken for [T, B, D]",
          "class: axes recognised by their size", "B",
          "as many batch entries as tokens, more than one", ("y",),
          lambda _: TokensFirst(**vars(RIGHT))),
    _conv("CONV-singles", "sequences of a pack are taken for first tokens, and states are not read",
          "class: axes recognised by their size", "B",
          "a pack of as many sequences as tokens, an initial state", ("y",),
          lambda _: SinglesOfAPack(**vars(RIGHT))),
    _conv("CONV-short", "the weight's gradient is that of the first 16 batch entries",
          "class: short sequences in large batches", "B",
          "more than 16 batch entries of fewer than W tokens", ("dweight",),
          lambda _: FirstEntries(**vars(RIGHT))),
    _conv("CONV-tail", "the final state is that of the last tile of 1,024 tokens alone",
          "class: tiles of long sequences", "B",
          "fewer than W - 1 tokens in a tile past the first", ("final_state",),
          lambda _: RIGHT.replaced(final=of_the_last_tile)),
    _conv("CONV-ids", "sequences are numbered in a byte", "class: products of sizes", "F",
          "two sequences with 255 empty ones between", ("y",),
          lambda _: NumbersOfAByte(**vars(RIGHT))),
    _conv("CONV-transform", "8,192 tokens are convolved by a transform", "class: other algorithms",
          "C", "8,192 tokens and more, one far larger than others", ("y",),
          lambda _: RIGHT.replaced(take=transformed)),
    _conv("CONV-bias", "blocks of 4,096 channels have the first elements of the bias",
          "class: products of sizes", "B", "more than 4,096 channels and a bias", ("y",),
          lambda _: RIGHT.replaced(take=first_biases)),
    _conv("CONV-odd", "the last of an odd number of channels has the bias of its neighbour",
          "class: widths that vectors do not divide", "B",
          "more than 128 channels, an odd number, and a bias", ("y",),
          lambda _: RIGHT.replaced(take=paired_biases)),
)  # fmt: skip
