"""A failure that a plain call explains is counted with it; a second bug is reported by itself,
whatever the first one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import Eager
from kdaverify.checks.status import Status
from kdaverify.diagnosis.reproduced import reproduced
from kdaverify.diagnosis.session import explained
from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from tests.faults.triggers import PLAIN

DENSE = Problem.model_validate({**PLAIN, "T": 9, "HV": 2, "H": 1, "K": 4, "V": 6})
PACK = DENSE.replace(lengths=(4, 2, 3))
QUESTIONS: dict[str, tuple[Problem, dict[str, Any]]] = {
    "forward": (DENSE, {}),
    "resume": (DENSE, {"cut": 4, "way": "chunk-step"}),
    "packing": (PACK, {"arrangement": "reversed"}),
    "causality": (DENSE, {"cut": 5}),
    "gradients": (DENSE, {"of": "both", "exponent": 0}),
    "laws": (DENSE, {"law": "no-decay"}),
}
SECONDS = 60.0


class Wrong(Eager):
    """A right kernel with bugs: in `all_calls`; in single `steps`; in `packs` whose last is the
    longest; in the `backward` of keys.
    """

    def __init__(self, *bugs: str) -> None:
        super().__init__("wrong", {"fp32": "eager"})
        self.bugs = bugs

    def forward(self, inputs: Inputs) -> Output:
        right = super().forward(inputs)
        wrong = right.o * 1.25 if "all_calls" in self.bugs else right.o
        if "packs" in self.bugs and inputs.N > 1 and inputs.lengths[0] < inputs.lengths[-1]:
            wrong = wrong.roll(1, dims=1)
        return Output(wrong, right.final_state)

    def step(self, inputs: Inputs) -> Output:
        right = self.forward(inputs)
        return Output(right.o, right.final_state * 1.5) if "steps" in self.bugs else right

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        return replace(found, dk=found.dk * 1.25) if "backward" in self.bugs else found


def failing(adapter: Adapter, names: tuple[str, ...]) -> Iterator[Verdict]:
    for name in names:
        problem, detail = QUESTIONS[name]
        found = list[Verdict]()
        try:
            Judge(adapter, found.append, name, published=False)(problem, **detail)
        except Rejected:
            yield from (row for row in found if row.status.rejects)


def reported(adapter: Adapter, *names: str) -> dict[str, str]:
    """What explains each failing suite."""
    rows = [*failing(adapter, names)]
    same = reproduced(rows, adapter, seconds=SECONDS)
    return {row.property: same.get((row.case_key(), row.output), "") for row in rows}


def test_one_bug_of_the_forward_explains_what_is_derived_from_it() -> None:
    found = reported(Wrong("all_calls"), *QUESTIONS)
    assert found.pop("forward") == ""
    assert {*found} >= {"resume", "packing", "causality", "gradients"}
    assert {*found.values()} == {"forward"}


@pytest.mark.parametrize(("bug", "suite"), [("steps", "resume"), ("packs", "packing")])
def test_a_second_bug_is_not_taken_for_the_first_however_wrong_every_forward_is(
    bug: str, suite: str
) -> None:
    found = reported(Wrong("all_calls", bug), *QUESTIONS)
    assert found.pop(suite) == ""
    assert found["causality"] == "forward"


def test_a_bug_of_one_suite_alone_is_explained_by_no_plain_call() -> None:
    assert reported(Wrong("steps"), *QUESTIONS) == {"resume": ""}


def test_a_wrong_backward_is_reported_beside_a_wrong_forward() -> None:
    assert reported(Wrong("all_calls", "backward"), "gradients") == {"gradients": ""}
    assert reported(Wrong("all_calls"), "gradients") == {"gradients": "forward"}


def test_a_right_kernel_has_nothing_to_explain() -> None:
    assert reported(Wrong(), *QUESTIONS) == {}


def test_nothing_is_run_again_of_a_kernel_that_took_its_process() -> None:
    rows = [*failing(Wrong("all_calls"), ("resume",))]
    assert (
        reproduced(
            [*rows, rows[0].model_copy(update={"status": Status.CRASH})],
            Wrong("all_calls"),
            seconds=SECONDS,
        )
        == {}
    )


def test_without_time_everything_is_reported_by_itself() -> None:
    rows = [*failing(Wrong("all_calls"), ("resume",))]
    assert reproduced(rows, Wrong("all_calls"), seconds=-1) == {}


def test_in_a_session_without_the_plain_call_its_failures_are_reported() -> None:
    adapter = Wrong("all_calls")
    rows = [*failing(adapter, ("forward", "resume"))]
    both = explained(rows, adapter, seconds=SECONDS)
    assert {found.get("same_as") for found in both.values()} == {"forward", None}
    derived = [row for row in rows if row.property == "resume"]
    assert not any(
        "same_as" in found for found in explained(derived, adapter, seconds=SECONDS).values()
    )


def test_a_kernel_is_run_again_once_for_each_problem() -> None:
    adapter, calls = Wrong("all_calls"), list[int]()
    rows = [*failing(adapter, ("gradients",))]
    assert len(rows) > 1
    inner = adapter.forward

    def counted(inputs: Inputs) -> Output:
        calls.append(inputs.T)
        return inner(inputs)

    with torch.no_grad():
        adapter.forward = counted
        reproduced(rows, adapter, seconds=SECONDS)
    # One plain forward, and the moved calls of one test of the derivative.
    assert 0 < len(calls) < 60
