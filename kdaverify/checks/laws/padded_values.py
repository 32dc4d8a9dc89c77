"""Value columns of zeros: nothing changes, and theirs of the outputs stay exactly 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.laws.padded_keys import empty
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def padded_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 12."""
    own, V = problem.inputs(), problem.V
    state = None if own.initial_state is None else pad(own.initial_state, (0, V))
    wide = replace(own, v=pad(own.v, (0, V)), initial_state=state)

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, wide, adapter.exposes(problem)).outputs
        return {
            name: empty(name, x[..., :V], x[..., V:], "columns that no value writes")
            for name, x in found.items()
        }

    return outcomes(adapter, own, produce)


def _wide(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(V=2 * problem.V),)


PADDED_VALUES: Final = Law(
    name="padded-values",
    statement="as many value columns of zeros again: the same o and S_T, and columns of exactly 0",
    section="7, law 12",
    exists_for="tiles of columns: scrambled, swapped, stale, or dependent on the width (SO5)",
    check=padded_values,
    becomes=_wide,
    judged=True,
)
