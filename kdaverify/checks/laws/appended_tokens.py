"""Tokens that neither write nor decay, appended:
the same outputs before them and the same final state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law, ends_excluded
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

APPENDED: Final = 17
"""More than a row of a tile, so that they end in another one."""


def appended_tokens(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 with beta = 0 and g = 0;
    queries, keys and values are those of the first tokens again.
    """
    own = problem.inputs()
    longer = _appended(own)

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, longer, adapter.exposes(problem)).outputs
        return {name: x[:, : problem.T] if name == "o" else x for name, x in found.items()}

    return outcomes(adapter, own, produce)


def _appended(own: Inputs) -> Inputs:
    again = torch.arange(own.T + APPENDED) % own.T
    idle = torch.arange(own.T + APPENDED) >= own.T
    moved = {name: getattr(own, name)[:, again] for name in TOKENS}
    g, beta = (
        moved["g"].masked_fill(idle[:, None, None], 0.0),
        moved["beta"].masked_fill(idle[:, None], 0.0),
    )
    return replace(own, **{**moved, "g": g, "beta": beta})


def _tested(problem: Problem) -> str | None:
    if problem.packed:
        return "tokens cannot be appended to every sequence of a pack"
    return ends_excluded(problem, gate=True, beta=True)


def _longer(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(T=problem.T + APPENDED),)


APPENDED_TOKENS: Final = Law(
    name="appended-tokens",
    statement="17 tokens of beta = 0 and g = 0 appended: the same o before them, the same S_T",
    section="7, law 14",
    exists_for=(
        "the end of a sequence: a partial chunk, its last gate, its tail of rows (H6, H7, DESIGN-b)"
    ),
    check=appended_tokens,
    untestable=_tested,
    becomes=_longer,
    draws={"packed": False},
    judged=True,
)
