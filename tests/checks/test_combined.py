"""Faults that need several properties of a problem at once: no other question of a profile has them, a row of its covering array does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.campaign.cases import case
from kdaverify.campaign.questions import questions
from kdaverify.checks.combined import combined
from kdaverify.checks.outcome import Outcome
from kdaverify.plugin.coverage import rows
from kdaverify.problems import Problem, problem_from_json
from kdaverify.problems.combinations import Row
from kdaverify.problems.profiles import settings_for
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

DTYPE: Final = "bf16"
TILE: Final = 64
BACKWARD: Final = ("gradients", "gradcheck", "jacobian", "self_consistency", "cotangent_linearity")
NOT_THESE: Final = ("combined", "calls", "drift")
"""Calls and drift compare sizes of their own with each other."""


@dataclass(frozen=True)
class Call:
    """What a fault may depend on: the lengths of the sequences, widths, value heads a key head, a given state, there alone or back."""

    lengths: tuple[int, ...]
    K: int
    V: int
    group: int
    state: bool
    back: bool

    @classmethod
    def of(cls, x: Inputs, *, back: bool) -> Call:
        lengths = (x.T,) * x.B if x.cu_seqlens is None else tuple(torch.diff(x.cu_seqlens).tolist())
        return cls(lengths, x.K, x.V, x.HV // x.H, x.initial_state is not None, back)

    @classmethod
    def of_problem(cls, p: Problem, *, back: bool) -> Call:
        return cls(p.lengths or (p.T,) * p.B, p.K, p.V, p.HV // p.H, p.state != "absent", back)

    @property
    def long(self) -> bool:
        return max(self.lengths) >= 1024


@dataclass(frozen=True)
class Fault:
    """What is wrong, where it shows, and the profile whose array holds that."""

    profile: str
    shows: Callable[[Call], bool]
    output: Callable[[Inputs, Output], Output] = lambda _, found: found
    gradients: Callable[[Gradients[Any]], Gradients[Any]] = lambda found: found


class Ported(Eager):
    """The embedded kernel with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("ported", {DTYPE: f"chunk64-{DTYPE}"})
        self._fault = fault

    def forward(self, inputs: Inputs) -> Output:
        found = super().forward(inputs)
        return self._fault.output(inputs, found) if self._fault.shows(Call.of(inputs, back=False)) else found

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        return self._fault.gradients(found) if self._fault.shows(Call.of(inputs, back=True)) else found


RIGHT: Final = Ported(Fault("smoke", lambda _: False))


def _later(_: Inputs, found: Output) -> Output:
    """A table that is full: what comes after its last entry keeps zeros."""
    o = found.o.clone()
    o[:, TILE:] = 0
    return replace(found, o=o)


def _other_head(x: Inputs, _: Output) -> Output:
    """Offsets of 16 bits: the last head of a group reads the values of the first one again."""
    v = x.v.clone()
    v[:, :, -1] = x.v[:, :, 0]
    return RIGHT.forward(replace(x, v=v))


def _other_state(x: Inputs, _: Output) -> Output:
    """The same for the states that are given."""
    assert x.initial_state is not None
    state = x.initial_state.clone()
    state[:, -1] = x.initial_state[:, 0]
    return RIGHT.forward(replace(x, initial_state=state))


def _second_tile(name: str) -> Callable[[Gradients[Tensor]], Gradients[Tensor]]:
    """The second tile of a gradient is written by half."""

    def changed(found: Gradients[Tensor]) -> Gradients[Tensor]:
        wrong: Tensor = found.named()[name].clone()
        wrong[..., TILE:] /= 2
        return replace(found, **{name: wrong})

    return changed


def _halved(name: str) -> Callable[[Gradients[Tensor]], Gradients[Tensor]]:
    return lambda found: replace(found, **{name: found.named()[name] / 2})


def _sequences(call: Call) -> int:
    return sum(map(bool, call.lengths))


FAULTS: Final = {
    "a thousand tokens, backward": Fault("smoke", lambda x: x.back and x.long, gradients=_halved("dk")),
    "a thousand tokens, three heads a group": Fault(
        "smoke", lambda x: x.long and x.group == 3, output=_other_head, gradients=_halved("dq")
    ),
    "a hundred sequences, one of several chunks": Fault(
        "smoke", lambda x: len(x.lengths) >= 100 and max(x.lengths) > TILE, output=_later, gradients=_halved("dv")
    ),
    "a hundred sequences, K over a tile": Fault(
        "smoke", lambda x: len(x.lengths) >= 100 and x.K > TILE, output=_later, gradients=_second_tile("dk")
    ),
    "a thousand tokens, three heads a group, a given state": Fault(
        "acceptance", lambda x: not x.back and x.long and x.group == 3 and x.state, output=_other_state
    ),
    "a hundred sequences, two heads a group, backward": Fault(
        "acceptance", lambda x: x.back and len(x.lengths) >= 100 and x.group == 2, gradients=_halved("dv")
    ),
    "several sequences, one of a thousand tokens, backward": Fault(
        "acceptance", lambda x: x.back and x.long and _sequences(x) > 1, gradients=_halved("dg")
    ),
}


@cache
def _others(profile: str) -> frozenset[Call]:
    """What the other suites ask: the fixed cases, and drawn ones of three seeds."""
    fixed = [ask for question in questions(RIGHT, profile, drawn=False) for ask in question.asks()]
    drawn = questions(RIGHT, profile, drawn=True)
    numbers = range(settings_for(profile).max_examples * len(drawn))
    asked = [*fixed, *(ask for seed in range(3) for number in numbers for ask in case(drawn, seed, number).asks)]
    found = [(problem_from_json(ask.problem), ask.property in BACKWARD) for ask in asked if ask.problem and ask.property not in NOT_THESE]
    return frozenset(Call.of_problem(problem, back=back) for problem, back in found if isinstance(problem, Problem))


def _rows(fault: Fault) -> list[Row]:
    called = [(row, Call.of_problem(row.problem, back=row.direction.startswith("gradients"))) for row in rows(RIGHT, fault.profile)]
    return [row for row, call in called if fault.shows(call)]


def _judged(fault: Fault | None, row: Row) -> list[Outcome]:
    return combined(Ported(fault) if fault else RIGHT, row.problem, direction=row.direction)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_row_shows_it_and_no_other_question_has_these_properties(fault: Fault) -> None:
    assert not [call for call in _others(fault.profile) if fault.shows(call)]
    assert any(outcome.status.rejects for row in _rows(fault) for outcome in _judged(fault, row))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_right_kernel_passes_there(fault: Fault) -> None:
    outcomes = [outcome for row in _rows(fault)[:3] for outcome in _judged(None, row)]
    assert outcomes and not any(outcome.status.rejects for outcome in outcomes)
