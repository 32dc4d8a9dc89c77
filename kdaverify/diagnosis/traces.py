"""Where a wrong output is wrong, in words: tokens, heads, sequences, columns, zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import APART, Tolerances
from kdaverify.operator import operator_of

SOME = 0.5
"""Of channels, where errors are small in some by chance, no more than this share is worth
reporting."""


def traces(kernel: KernelErrors, scales: Tolerances, problem: Any, chunk_size: int) -> str:
    """A clause for every output that is wrong in a part of itself; "" for all or nothing.

    Args:
        problem: that of the outputs; properties of parts of them report nothing.
    """
    clauses = _clauses(kernel, scales, problem, chunk_size)
    return "; ".join(f"{name}: {clause}" for name, clause in clauses)


def _clauses(
    kernel: KernelErrors, scales: Tolerances, problem: Any, chunk_size: int
) -> Iterator[tuple[str, str]]:
    signature = operator_of(problem).signature
    for name, scale in scales.items():
        found = kernel.outputs.get(name)
        # tokens and heads
        if (
            found is None
            or found.ndim < 3
            or (not signature.is_state(name) and found.shape[1] != problem.T)
        ):
            continue
        wrong = ~((found - scale.exact).abs() <= APART * scale.largest)
        if not bool(wrong.any()):
            continue
        if signature.is_state(name):
            where = _of_states(wrong)
        else:
            where = _of_tokens(wrong, problem, chunk_size)
        parts = [*_zeros(found, scale.exact, wrong), *where]
        if parts:
            yield name, ", ".join(parts)


def _zeros(found: Tensor, exact: Tensor, wrong: Tensor) -> list[str]:
    if bool((found[wrong] == 0).all()) and bool((exact[wrong] != 0).any()):
        return ["0 wherever it is wrong"]
    return []


def _of_states(wrong: Tensor) -> Iterator[str]:
    """[N, HV, K, V]."""
    for axis, noun in enumerate(("sequence", "head", "row", "column")):
        yield from _only(wrong, axis, noun, most=1.0 if axis < 2 else SOME)  # rows and columns


def _of_tokens(wrong: Tensor, problem: Any, chunk_size: int) -> Iterator[str]:
    """[B, T, heads, ...]."""
    rows = wrong.flatten(2).any(-1)
    bad = [
        (n, [t for t in range(length) if rows[b, first + t]], length)
        for n, (b, first, length) in enumerate(problem.spans)
    ]
    hit = [(tokens, length) for _, tokens, length in bad if tokens]
    if not hit:
        yield "only past the last offset"
        return
    if len(hit) < problem.N:
        yield f"only in {_listed([n for n, tokens, _ in bad if tokens], 'sequence')} of {problem.N}"
    earliest = min(tokens[0] for tokens, _ in hit)
    partial = [(length - 1) // chunk_size * chunk_size for _, length in hit]
    if all(
        length % chunk_size and length > chunk_size and tokens[0] >= start
        for (tokens, length), start in zip(hit, partial, strict=True)
    ):
        yield "only in the last, partial chunk"
    elif all(tokens == [0] for tokens, _ in hit) and any(length > 1 for _, length in hit):
        yield "only at the first token"
    elif earliest:
        yield f"only from token {earliest} on"
    yield from _only(wrong, 2, "head")
    if wrong.ndim > 3:  # channels
        yield from _only(wrong, 3, "channel", most=SOME)


def _only(wrong: Tensor, axis: int, noun: str, *, most: float = 1.0) -> Iterator[str]:
    others = tuple(i for i in range(wrong.ndim) if i != axis)
    hit = wrong.any(dim=others) if wrong.ndim > 1 else wrong
    if not bool(hit.all()) and int(hit.sum()) <= most * len(hit):
        yield f"only in {_listed(torch.nonzero(hit).flatten().tolist(), noun)} of {len(hit)}"


def _listed(places: list[int], noun: str) -> str:
    if len(places) == 1:
        return f"{noun} {places[0]}"
    if places == list(range(places[0], places[-1] + 1)):
        return f"{noun}s {places[0]} to {places[-1]}"
    # enough to see the pattern
    return f"{noun}s {', '.join(map(str, places[:6]))}{', ...' if len(places) > 6 else ''}"
