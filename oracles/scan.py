"""Walking sequences in blocks of tokens, both ways: dense and packed, longest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from oracles.arithmetic import Samples
from oracles.inputs import Inputs
from oracles.tokens import Span, Tensors, Tokens, gather, longest_first, once, scatter, spans

X = TypeVar("X")
Y = TypeVar("Y")
P = ParamSpec("P")

# Tokens gathered at once, and those between two kept carries of a walk there and back, inside which
# they are computed a second time.
BLOCK = 64
# Elements of the states before the blocks of a walk there and back, up to which what every token
# leaves is kept: it is 64 times as much, several times.
KEPT_STATES = 2**15

Body = Callable[[Tensors, Tokens], tuple[Tensors, Tensors]]
Block = tuple[Tokens, Tensor, int]
"""Tokens of the sequences that reach a block, the rows that they are written to, and how many
sequences those are."""


def scan(
    inputs: Inputs,
    size: int,
    carry: Tensors,
    body: Body,
    *,
    dtype: torch.dtype,
    others: Tensors = (),
    reverse: bool = False,
    inert: int | None = None,
) -> tuple[Tensors, Tensors]:
    """Carries state through every sequence, `size` tokens at a time.

    An inert row leaves any state bit-identical (S * exp(0) + 0 * 0), so short tails need no second
    code path. A walk backwards takes the blocks of the walk forwards, the last one first, each
    with the same sequences.

    Args:
        size: tokens per block.
        carry: tensors [N, ...], the state before the first block walked.
        body: (carry [n, ...], tokens) -> (carry [n, ...], outputs [n, HV, C, ...]); n counts the
            sequences that reach the block.
        dtype: dtype the tokens are cast to.
        others: tensors [B, T, HV, ...] handed to `body` beside the tokens.
        reverse: from the last block to the first.
        inert: how many rows that are inert in all sequences are walked, where that is limited: a
            block ends so many after the longest.
    Returns:
        The carry after the last block walked [N, ...], and the outputs [B, T, HV, ...], zero on
        padding.
    """
    if not any(inputs.lengths):
        raise ValueError(
            "scan: every sequence is empty, so there is no block to run; return the initial state"
            " instead"
        )
    order = longest_first(inputs)
    cut = spans(inputs, order, size * max(1, BLOCK // size))
    carry = tuple(tensor[order] for tensor in carry)
    resting = tuple(tensor[:0] for tensor in carry)
    rows: list[Tensor] = []
    produced: list[Tensors] = []
    for span in reversed(cut) if reverse else cut:
        blocks = _blocks(inputs, span, size, dtype=dtype, others=others, inert=inert)
        for live, group in groupby(reversed(blocks) if reverse else blocks, key=itemgetter(2)):
            if live != len(carry[0]):
                everyone = tuple(torch.cat(pair) for pair in zip(carry, resting, strict=True))
                carry = tuple(tensor[:live] for tensor in everyone)
                resting = tuple(tensor[live:] for tensor in everyone)
            carry, places, outputs = _walked_blocks(carry, group, body)
            rows.append(places)
            produced.append(outputs)
    back = torch.as_tensor(order).argsort()
    final = tuple(torch.cat(pair)[back] for pair in zip(carry, resting, strict=True))
    return final, tuple(
        scatter(inputs, rows, list(pieces)) for pieces in zip(*produced, strict=True)
    )


def _walked_blocks(
    carry: Tensors, blocks: Iterable[Block], body: Body
) -> tuple[Tensors, Tensor, Tensors]:
    """The carry after blocks of the same sequences; the rows and the outputs of all."""
    places: list[Tensor] = []
    walked: list[Tensors] = []
    for x, of_block, _ in blocks:
        carry, outputs = body(carry, x)
        places.append(of_block)
        walked.append(outputs)
    joined = (
        _joined(pieces, 2).transpose(1, 2).flatten(0, 1) for pieces in zip(*walked, strict=True)
    )
    return carry, _joined(places, 1).flatten(), tuple(joined)


def _joined(pieces: Sequence[Tensor], dim: int) -> Tensor:
    """Those of blocks that the same sequences reach: by token they took a tenth of a walk."""
    return pieces[0] if len(pieces) == 1 else torch.cat([*pieces], dim)


def there_and_back(
    inputs: Inputs,
    *,
    start: Tensors,
    there: Callable[[Tensors, Tokens], tuple[Tensors, X]],
    end: Tensors,
    back: Callable[[Tensors, Tokens, X], tuple[Tensors, Tensors]],
    others: Tensors,
    rounds: bool = False,
    samples: Samples | None = None,
) -> tuple[Tensors, Tensors]:
    """Walks tokens forwards, then backwards; keeps the first state of every block, and what its
    tokens left where that is little and takes no samples.

    Of the last block, which is walked again on the way back, nothing is kept, and rows past the
    longest sequence give nothing: what of them cannot reach a result is not computed. Problems of
    one token took as long as those of 64.

    Args:
        start: carry [N, ...] before the first token; `there` takes it past one token and leaves
            something for `back`.
        end: carry [N, ...] after the last token; `back` takes it before one token and gives outputs
            [n, HV, 1, ...].
        others: tensors [B, T, HV, ...] handed to both beside the tokens; the type of the first is
            the one computed in.
        rounds: whether a carry is rounded as it is stored.
        samples: of those roundings. What is not computed takes its samples all the same: those of
            all other tokens would be others.
    Returns:
        The carry before the first token, and the outputs [B, T, HV, ...], zero on padding.
    """
    # The first row past the end may round what is carried; only samples do so in every one.
    inert = None if samples is not None else int(rounds)
    walk = partial(scan, inputs, BLOCK, dtype=others[0].dtype, others=others, inert=inert)
    blocks = -(-max(inputs.lengths) // BLOCK)
    light = samples is None and blocks * start[0].numel() <= KEPT_STATES
    trip = _RoundTrip(there, back, blocks, light=light, walked=_Walked(samples))
    walk(start, trip.forwards)
    return walk(end, trip.backwards, reverse=True)


@dataclass
class _RoundTrip(Generic[X]):
    """The blocks of `there_and_back`, each way.

    Args:
        blocks: of the longest sequence.
        light: whether what the tokens of every block left is kept.
        kept: the carry before every block that was walked forwards, and what its tokens left.
    """

    there: Callable[[Tensors, Tokens], tuple[Tensors, X]]
    back: Callable[[Tensors, Tokens, X], tuple[Tensors, Tensors]]
    blocks: int
    light: bool
    walked: _Walked
    kept: list[tuple[Tensors, list[X]]] = field(default_factory=list)

    def forwards(self, carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        """The carry after a block; of the last one, which `backwards` walks again, its own."""
        if len(self.kept) + 1 < self.blocks:
            after, left = self._block(carry, x)
            self.kept.append((carry, left if self.light else []))
            return after, ()
        self.kept.append((carry, []))
        if self.walked.samples is not None:
            self.walked.one(self.there, carry, x.rows(slice(1)))
            self.walked.pass_over(BLOCK - 1)
        return carry, ()

    def backwards(self, carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        """The carry before a block, and its outputs."""
        (state, left), tokens, real = self.kept.pop(), x.split(1), _real(x)
        left = left or self._block(state, x)[1]
        rows: list[Tensors] = []
        settled = False
        for t in reversed(range(len(tokens))):
            if settled and t >= real:
                rows.append(rows[-1])
                continue
            before, outputs = self.walked.one(self.back, carry, tokens[t], left[t])
            if t >= real and not rows:
                # Stored without a change once, it always is.
                settled = all(map(torch.equal, before, carry))
                self.walked.pass_over(settled * (len(tokens) - real - 1))
            carry = before
            rows.append(outputs)
        return carry, tuple(torch.cat(pieces[::-1], dim=2) for pieces in zip(*rows, strict=True))

    def _block(self, carry: Tensors, x: Tokens) -> tuple[Tensors, list[X]]:
        left: list[X] = []
        tokens = x.split(1)
        for token in tokens[: _real(x)]:
            carry, of_token = self.walked.one(self.there, carry, token)
            left.append(of_token)
        self.walked.pass_over(len(tokens) - len(left))
        # What `back` finds of rows past the end with it is dropped.
        return carry, left + left[-1:] * (len(tokens) - len(left))


def _real(x: Tokens) -> int:
    """The rows of the longest sequence."""
    return int(x.valid[0].sum())


@dataclass
class _Walked:
    """Counts the samples that tokens take, for those that are not computed.

    Args:
        each: what the last token took.
    """

    samples: Samples | None
    each: int = 0

    def one(self, step: Callable[P, Y], *args: P.args, **kwargs: P.kwargs) -> Y:
        """What one token comes to."""
        before = 0 if self.samples is None else self.samples.taken
        found = step(*args, **kwargs)
        self.each = 0 if self.samples is None else self.samples.taken - before
        return found

    def pass_over(self, tokens: int) -> None:
        """Takes the samples of so many like the last one."""
        if self.samples is not None:
            self.samples.skip(tokens * self.each)


def _blocks(
    inputs: Inputs,
    span: Span,
    size: int,
    *,
    dtype: torch.dtype,
    others: Tensors,
    inert: int | None,
) -> list[Block]:
    """The blocks of one span; arguments as those of `scan`."""

    def made() -> Iterator[Block]:
        tokens, (_, rows, valid) = gather(inputs, span, dtype, others), span
        written = rows.masked_fill(~valid, inputs.B * inputs.T)
        if inert is not None:
            # The first sequence is the longest.
            tokens = tokens.rows(slice(_real(tokens) + inert))
        reached = [live for live in valid[:, ::size].sum(0).tolist() if live]
        pieces = tokens.split(size), written.split(size, dim=1)
        for x, of_block, live in zip(*pieces, reached, strict=False):
            rest = x if live == len(x.valid) else x.rows(slice(None), live)
            yield rest, of_block[:live, : x.valid.shape[1]], live

    if others or size == 1:
        # A token at a time they would take more memory than the tokens.
        return list(made())
    return once((inputs, span[0], size, dtype, inert), lambda: list(made()))
