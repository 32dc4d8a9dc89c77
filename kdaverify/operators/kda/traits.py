"""Phrases about a problem, for the line that separates failing from passing cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kdaverify.problems import Problem
from kdaverify.problems.regimes import REGIMES

BLOCKS: Final = (16, 32, 64, 128)
"""Rows that tiles and chunks have: where a length or a width is no multiple, a kernel has a
tail."""
LENGTHS: Final = (1, 16, 32, 64, 128, 1024)
WIDTHS: Final = (1, 16, 32, 64, 128)
CHUNK: Final = 64
"""Tokens over which kernels sum gates before they take an exponential: the chunk of most of
them."""
OVERFLOW: Final = 88.0
"""Nats: exp of more is infinite in fp32, and exp of less than the negative is subnormal."""
BOUNDED: Final = 5.0
"""Nats of one token: the lower bound of the gates that models train with."""

MOST_GATES: Final = 2**18
CHANNELS: Final = 16
"""Of more gates those of one head of so many channels are looked at: of 8,192 tokens of 32 heads
they took three seconds, at the end of a run."""


def traits(problem: Problem) -> dict[str, bool]:
    """Whether these sentences are true of a problem; T is that of a pack's longest sequence.

    Sentences are those that a kernel's code can depend on: sizes against blocks, what is packed,
    shared or absent, and which values.
    """
    return dict(
        (
            *_lengths(problem),
            *_sequences(problem),
            *_widths(problem),
            *_heads(problem),
            *_gates(problem),
            *_values(problem),
        )
    )


def _lengths(p: Problem) -> Iterator[tuple[str, bool]]:
    lengths = [length for _, _, length in p.spans]
    for size in LENGTHS:
        yield f"T > {size}", max(lengths, default=0) > size
    yield f"T >= {CHUNK}", max(lengths, default=0) >= CHUNK
    for block in BLOCKS:
        yield f"T % {block} != 0", any(length % block for length in lengths)
    yield f"T % {CHUNK} == 1", any(length % CHUNK == 1 for length in lengths)


def _sequences(p: Problem) -> Iterator[tuple[str, bool]]:
    lengths = p.lengths or ()
    yield "packed", p.packed
    yield "a pack of 2 sequences or more", len(lengths) > 1
    yield "a pack with an empty sequence", p.packed and 0 in lengths
    yield "a pack with tokens past the last offset", p.packed and sum(lengths) < p.T
    # Columns counted from the start of a pack are those of the sequence where it starts a chunk.
    yield (
        f"a pack with a sequence that starts at no multiple of {CHUNK} tokens",
        any(first % CHUNK for _, first, length in p.spans if length),
    )
    yield "B > 1", p.B > 1


def _widths(p: Problem) -> Iterator[tuple[str, bool]]:
    for axis, size in (("K", p.K), ("V", p.V)):
        for width in WIDTHS:
            yield f"{axis} > {width}", size > width
        yield f"{axis} no power of two", bool(size & (size - 1))
    yield "K != V", p.K != p.V
    yield "K > V", p.K > p.V


def _heads(p: Problem) -> Iterator[tuple[str, bool]]:
    yield "HV > H", p.HV > p.H
    yield "H > 1", p.H > 1
    yield "HV > 1", p.HV > 1


def _gates(p: Problem) -> Iterator[tuple[str, bool]]:
    """Of single tokens, and of chunks from the start of each sequence on: what decides is how
    strong gates are, not their regime.
    """
    narrow = p if p.B * p.T * p.HV * p.K <= MOST_GATES else p.replace(H=1, HV=1, K=CHANNELS)
    gates = narrow.decays().double()
    chunks = [
        part.sum(0)
        for b, first, length in p.spans
        if length
        for part in gates[b, first : first + length].split(CHUNK)
    ]
    deepest = min((float(summed.min()) for summed in chunks if summed.numel()), default=0.0)
    yield f"a gate below -{BOUNDED:g}", bool((gates < -BOUNDED).any())
    yield f"gates that sum below -{OVERFLOW:g} in {CHUNK} tokens", deepest < -OVERFLOW


def _values(p: Problem) -> Iterator[tuple[str, bool]]:
    for axis, names in REGIMES.items():
        for name in names:
            yield f"{axis} = {name}", getattr(p, axis) == name
    yield "gates to -inf", "hard-reset" in p.gate or p.gate == "mixed"
    yield "scale given", p.scale is not None
