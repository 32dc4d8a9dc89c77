"""Walking chunks most of whose work needs no state: that is done for many of them at once.

Chunk by chunk, 16 chunks took 2 to 5 times as long, there and back: sums of gates, scores, solve
and what is read of them are small operations, whose calls cost more than their arithmetic. Only the
state goes from one chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from oracles.inputs import Inputs
from oracles.tokens import (
    OfSequences,
    Span,
    Tensors,
    Tokens,
    gather,
    longest_first,
    once,
    scatter,
    spans,
)

C = TypeVar("C", bound=OfSequences)
Rows = slice | Tensor
Scan = Callable[[C, Sequence[Rows], Tensor], Sequence[Tensor]]
"""Of chunks, which of them are the first ones of their sequences, the second ones, ..., and the
state before the first [n, ...]: the states after those of each block."""

# Elements of the widest tensor of the chunks that are made at once: on a CPU what caches hold.
AT_ONCE, AT_ONCE_ELSEWHERE = 2**18, 2**24


@dataclass(frozen=True)
class Staged(Generic[C]):
    """What is done with chunks, as if each were all of a sequence.

    Args:
        made: of their tokens, what the stages read and add to.
        stages: in order.
        along: those that take the state [n, ...] past chunks of n sequences.
        carried: the name of that state.
        outputs: [n, HV, C, ...], when all stages are done.
        scan: of many chunks of a sequence at once; None: those along take it past one at a time.
        number: of chunks of a sequence that are walked at once; None: whatever caches hold.
    """

    made: Callable[[Tokens], C]
    stages: Sequence[Callable[[C], None]]
    along: slice
    carried: str
    outputs: Callable[[C], Tensors]
    scan: Scan[C] | None = None
    number: int | None = None

    def before(self, tokens: Tokens) -> C:
        chunks = self.made(tokens)
        self._run(chunks, slice(self.along.start))
        return chunks

    def step(self, chunks: C, state: Tensor) -> Tensor:
        setattr(chunks, self.carried, state)
        self._run(chunks, self.along)
        return getattr(chunks, self.carried)

    def after(self, chunks: C) -> Tensors:
        self._run(chunks, slice(self.along.stop, None))
        return self.outputs(chunks)

    def _run(self, chunks: C, stages: slice) -> None:
        for stage in self.stages[stages]:
            stage(chunks)


def walk_chunks(
    inputs: Inputs,
    size: int,
    state: Tensor,
    staged: Staged[C],
    *,
    dtype: torch.dtype,
    others: Tensors = (),
    reverse: bool = False,
    together: bool,
) -> tuple[Tensor, Tensors]:
    """Carries state through every sequence, chunk by chunk, as `oracles.scan.scan` does.

    Args:
        size: C, tokens per chunk.
        state: [N, ...], before the first chunk walked.
        dtype: dtype the tokens are cast to.
        others: tensors [B, T, HV, ...] handed over beside the tokens.
        reverse: from the last chunk to the first.
        together: whether the stages beside `along` may have several chunks of a sequence at once.
    Returns:
        The state after the last chunk walked [N, ...], and the outputs [B, T, HV, ...], zero on
        padding.
    """
    order = longest_first(inputs)
    carried = _Carried(state[order])
    number = staged.number or (_chunks_at_once(inputs, size) if together else 1)
    cut = spans(inputs, order, size * number)
    places: list[Tensor] = []
    produced: list[Tensors] = []
    for span in reversed(cut) if reverse else cut:
        pieces = _pieces(inputs, span, size)
        chunks = staged.before(gather(inputs, pieces.span, dtype, others))
        if staged.scan is None:
            pieces.step(chunks, carried, staged, reverse=reverse)
        else:
            pieces.scan(chunks, carried, staged, staged.scan)
        produced.append(tuple(x.transpose(1, 2).flatten(0, 1) for x in staged.after(chunks)))
        places.append(pieces.places(inputs))
    return carried.of_all[torch.as_tensor(order).argsort()], tuple(
        scatter(inputs, places, list(found)) for found in zip(*produced, strict=True)
    )


def _chunks_at_once(inputs: Inputs, size: int) -> int:
    """Of each sequence."""
    most = AT_ONCE if inputs.q.device.type == "cpu" else AT_ONCE_ELSEWHERE
    of_chunk = size * inputs.HV * max(size, inputs.K, inputs.V)
    lengths = inputs.lengths
    sequences = -(-sum(lengths) // max(lengths))
    return max(1, most // (of_chunk * sequences))


class _Carried:
    """The state of all sequences, the longest first, of which the first ones are walked."""

    def __init__(self, state: Tensor) -> None:
        self.walked, self._resting = state, state[:0]

    @property
    def of_all(self) -> Tensor:
        return torch.cat((self.walked, self._resting))

    def of_first(self, live: int) -> Tensor:
        """The state of the first `live` sequences, which are walked on."""
        if live != len(self.walked):
            everyone = self.of_all
            self.walked, self._resting = everyone[:live], everyone[live:]
        return self.walked


@dataclass(frozen=True)
class _Pieces:
    """Chunks of sequences as so many short sequences, the longest first.

    Args:
        span: all of them, as `gather` takes them.
        blocks: which are the first chunks of the sequences, which the second ones, ...; in each
            the longest sequence first.
        order: of the chunks of all blocks, one block after the other, those of the span; None:
            they are the same.
    """

    span: Span
    blocks: Sequence[Rows]
    order: Tensor | None

    def places(self, inputs: Inputs) -> Tensor:
        """The rows that outputs are written to; of padding, one more than there are."""
        _, rows, valid = self.span
        return rows.masked_fill(~valid, inputs.B * inputs.T).flatten()

    def step(self, chunks: C, carried: _Carried, staged: Staged[C], *, reverse: bool) -> None:
        """Takes the state past block after block, and gives all chunks what the steps added."""
        if len(self.blocks) == 1:
            carried.walked = staged.step(chunks, carried.of_first(len(self.span[1])))
            return
        added: list[dict[str, Tensor]] = []
        for block in reversed(self.blocks) if reverse else self.blocks:
            part = chunks.picked(block)
            before = [*vars(part).values()]
            carried.walked = staged.step(part, carried.of_first(_number(block)))
            added.append(_others_than((*before, carried.walked), part))
        for name in added[0]:
            parts = [of[name] for of in (reversed(added) if reverse else added)]
            setattr(chunks, name, self._in_place(parts))

    def scan(self, chunks: C, carried: _Carried, staged: Staged[C], scan: Scan[C]) -> None:
        """Takes the state past all blocks at once."""
        start = carried.of_first(_number(self.blocks[0]))
        after = scan(chunks, self.blocks, start)
        later = zip(after, self.blocks[1:], strict=False)
        before = [start, *(state[: _number(block)] for state, block in later)]
        staged.step(chunks, self._in_place(before))
        for state in after:
            carried.of_first(len(state))
            carried.walked = state

    def _in_place(self, of_blocks: Sequence[Tensor]) -> Tensor:
        """What every block has, chunk by chunk as they lie in the span."""
        joined = torch.cat([*of_blocks])
        return joined if self.order is None else joined[self.order]


def _number(block: Rows) -> int:
    return block.stop - block.start if isinstance(block, slice) else len(block)


def _others_than(known: Sequence[object], part: OfSequences) -> dict[str, Tensor]:
    """The tensors of `part` that are none of these."""
    return {
        name: x
        for name, x in vars(part).items()
        if isinstance(x, Tensor) and not any(x is one for one in known)
    }


def _pieces(inputs: Inputs, span: Span, size: int) -> _Pieces:
    """The chunks of one span of tokens."""
    if span[1].shape[1] == size:
        return _Pieces(span, [slice(0, len(span[1]))], None)

    def made() -> _Pieces:
        first, rows, valid = span
        rows, valid = (
            x.unflatten(1, (-1, size)).transpose(0, 1).flatten(0, 1) for x in (rows, valid)
        )
        lengths = valid.sum(1)
        # Stable: of chunks as long, those of the first block come first.
        pieces = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
        block_of = pieces // len(span[1])
        blocks = [(block_of == b).nonzero().flatten() for b in range(int(block_of.max()) + 1)]
        order = torch.cat(blocks).argsort()
        return _Pieces(
            (first, rows[pieces], valid[pieces]),
            [_as_slice(block) for block in blocks],
            None if isinstance(_as_slice(order), slice) else order,
        )

    return once((inputs, "chunks", span[0], span[1].shape, size), made)


def _as_slice(numbers: Tensor) -> Rows:
    """The same as a slice where they follow each other: of it tensors are views."""
    first = int(numbers[0])
    follow = torch.equal(numbers, torch.arange(first, first + len(numbers)))
    return slice(first, first + len(numbers)) if follow else numbers
