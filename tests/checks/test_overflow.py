"""An output whose exact values fit is judged though others
of the same call overflow in every reference kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.eager import EAGER, EAGER_RECURRENT, Eager
from kdaverify.budgets.finite import OutputRuns, finite_outputs, finite_runs
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.checks.status import Status
from kdaverify.diagnosis.call import DiagnosedCall
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.planted.overflow import FAULTS, OverflowFault, Overflowing
from kdaverify.problems.cotangents import OVERFLOWING, OVERFLOWING_EXPONENT
from oracles.gradients import Gradients

PROBLEM, EXPONENT = OVERFLOWING, OVERFLOWING_EXPONENT
NAN = torch.tensor(float("nan"))


@dataclass(frozen=True)
class Case:
    """A call of which some gradients overflow, and those that are judged all the same."""

    kernel: Eager
    judged: frozenset[str]


CHUNK = Case(EAGER, frozenset({"dv", "d_initial_state"}))
TOKENS = Case(EAGER_RECURRENT, frozenset({"dv", "dg", "d_initial_state"}))


def judged(case: Case, change: Callable[[Gradients[Tensor]], Gradients[Tensor]]) -> list[Outcome]:
    return gradients(Overflowing(case.kernel, change), PROBLEM, of="both", exponent=EXPONENT)


@pytest.mark.parametrize("case", [CHUNK, TOKENS], ids=lambda case: case.kernel.name)
def test_gradients_that_fit_pass_beside_others_that_overflow(case: Case) -> None:
    found = {outcome.output: outcome for outcome in judged(case, lambda x: x)}
    assert {name for name, outcome in found.items() if outcome.status is Status.PASS} == case.judged
    rest = [outcome for name, outcome in found.items() if name not in case.judged]
    assert rest and all(
        outcome.status is Status.SKIP
        and outcome.message.startswith(f"{outcome.output}: it overflows")
        for outcome in rest
    )


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_calls_that_overflow_elsewhere_is_rejected(fault: OverflowFault) -> None:
    wrong = Overflowing(fault.kernel, fault.change)
    found = {
        outcome.output: outcome.status
        for outcome in gradients(wrong, PROBLEM, of="both", exponent=EXPONENT)
    }
    assert {name for name, status in found.items() if status.rejects} == {fault.output}
    milder = PROBLEM.replace(value="normal")
    assert all(outcome.status is Status.PASS for outcome in gradients(wrong, milder, of="both"))


@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (0.5, Status.FAIL)])
def test_a_state_in_fp32_is_judged_where_o_overflows_fp16(factor: float, status: Status) -> None:
    adapter, mild = find("eager-recurrent"), PROBLEM.inputs()
    inputs = replace(mild, initial_state=mild.state * 1e6)

    def produce() -> dict[str, Tensor]:
        found = adapter.forward(inputs)
        return {"o": found.o, "final_state": found.final_state * factor}

    found = {outcome.output: outcome.status for outcome in outcomes(adapter, inputs, produce)}
    assert found == {"o": Status.SKIP, "final_state": status}


def test_the_diagnosis_compares_the_outputs_that_are_judged() -> None:
    question = PropertyCase("gradients", PROBLEM, {"of": "both", "exponent": EXPONENT})
    assert {*DiagnosedCall(question, find("eager"), PROBLEM).tolerances()} == CHUNK.judged


def test_a_call_in_which_every_output_overflows_concludes_nothing() -> None:
    adapter, mild = find("eager"), PROBLEM.inputs()
    inputs = replace(mild, initial_state=mild.state * 1e6)
    (found,) = outcomes(
        adapter,
        inputs,
        lambda: dict(
            zip(("o", "final_state"), vars(adapter.forward(inputs)).values(), strict=False)
        ),
    )
    assert found.status is Status.SKIP and found.output == "call"


def test_an_output_is_judged_beside_one_that_overflows_where_every_run_keeps_it_finite() -> None:
    fits, beyond = torch.ones(2), torch.tensor([1.0, torch.inf])
    runs = {"first": (fits, beyond, fits), "second": (fits, fits, beyond)}
    assert finite_runs(runs, iter, deciding=["first"], single=False) == {}
    assert finite_runs(runs, iter, deciding=["first"], single=True) == runs
    smaller = {**runs, "smaller chunks": (fits, fits, fits)}
    assert finite_runs(smaller, iter, deciding=["first"], single=True) == smaller
    assert finite_runs(smaller, iter, deciding=["smaller chunks"], single=True) == {
        "smaller chunks": (fits, fits, fits)
    }
    by_output = {
        name: OutputRuns([run[i] for run in runs.values()], [fits]) for i, name in enumerate("abc")
    }
    assert finite_outputs(by_output) == ["a"]
    assert finite_outputs({"a": OutputRuns([fits], [beyond])}) == ["a"]
    assert finite_outputs({**by_output, "a": OutputRuns([fits, fits], [beyond])}) == []
