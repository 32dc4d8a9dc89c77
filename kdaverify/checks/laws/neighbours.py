"""All other sequences of a pack drawn anew: nothing of one sequence changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import Call, Relation, same_bits
from kdaverify.checks.laws.anew import drawn_anew
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def neighbours(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 3. Keeps the longest sequence, and every empty one; the others, and what is past the last offset, are drawn anew."""
    spans = problem.spans
    _, first, length = max(spans, key=lambda span: span[2])
    tokens, rows = torch.zeros(problem.B, problem.T, dtype=torch.bool), torch.arange(problem.T)
    tokens[0] = (rows >= first) & (rows < first + length)
    sequences = torch.tensor([not span[2] or span[1] == first for span in spans])

    def alike(name: str, found: Tensor) -> Tensor:
        kept = tokens[..., None, None] if name == "o" else sequences[:, None, None, None]
        return kept.expand(found.shape)

    other = drawn_anew(problem, tokens=tokens, sequences=sequences)
    return same_bits(adapter, problem, Relation(Call(problem.inputs()), Call(other), alike=alike))


def _asked(problem: Problem) -> str | None:
    used = [length for _, _, length in problem.spans if length]
    return None if problem.packed and len(used) > 1 else "wanted a pack of two sequences with tokens or more"


NEIGHBOURS: Final = Law(
    name="neighbours",
    statement="every other sequence of a pack, and its padding, drawn anew: o and S_T of one sequence keep their bits, empty ones theirs",
    section="7, law 3",
    exists_for="offsets and chunk tables: tiles, states or gates that reach into the next sequence (V1, V10, V11, H4)",
    check=neighbours,
    asked=_asked,
    draws={"packed": True},
)
