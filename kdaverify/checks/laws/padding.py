"""Tokens past the last offset of a pack resampled: no output changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, everywhere, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.laws.resample import TOKENS, resampled
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def padding(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 14. Rows of o past the last offset belong to nobody and are not compared."""
    used = (torch.arange(problem.T) < sum(problem.lengths or ())).expand(problem.B, problem.T)

    def alike(name: str, found: Tensor) -> Tensor:
        return used[..., None, None].expand(found.shape) if name == "o" else everywhere(name, found)

    other = resampled(problem, tokens=used, names=TOKENS)
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), alike=alike)
    )


def _tested(problem: Problem) -> str | None:
    return (
        None
        if problem.packed and sum(problem.lengths or ()) < problem.T
        else "wanted a pack with tokens past its last offset"
    )


PADDING: Final = Law(
    name="padding",
    statement=(
        "tokens past the last offset resampled: o of every sequence and all S_T keep their bits"
    ),
    section="7, law 14",
    exists_for=(
        "rows past the end that are read or written back: padded tokens in states, in tails, in"
        " slot 0 or -1 (P8, S16, V9)"
    ),
    check=padding,
    untestable=_tested,
    draws={**LIVELY, "packed": True},
)
