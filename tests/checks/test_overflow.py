"""An output whose exact values fit is judged though others of the same call overflow in every reference kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.eager import Eager
from kdaverify.budgets.finite import OutputRuns, finite_outputs, finite_runs
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.checks.status import Status
from kdaverify.diagnosis.call import Call
from kdaverify.diagnosis.question import Question
from kdaverify.problems import Problem
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

# Values of 2^6 and a loss times 2^14: products of both are above 65504, the largest number of fp16.
PROBLEM = Problem(
    B=1, T=70, H=1, HV=1, K=8, V=8, dtype="fp16", gate="spread", key="random", beta="uniform", state="random", value="large", seed=2
)
EXPONENT = 14
NAN = torch.tensor(float("nan"))


@dataclass(frozen=True)
class Case:
    """A call of which some gradients overflow, and those that are judged all the same."""

    implementation: str
    judged: frozenset[str]


CHUNK = Case("eager", frozenset({"dv", "d_initial_state"}))
TOKENS = Case("eager-recurrent", frozenset({"dv", "dg", "d_initial_state"}))


class Overflowing(Eager):
    """The embedded kernel in fp16, with a change to the gradients of calls in which one of them overflows."""

    def __init__(self, name: str, change: Callable[[Gradients[Tensor]], Gradients[Tensor]]) -> None:
        super().__init__(name, {"fp16": find(name).contract("fp16").name})
        self._change = change

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        finite = all(bool(torch.isfinite(x).all()) for x in found.named().values())
        return found if finite else self._change(found)


def judged(case: Case, change: Callable[[Gradients[Tensor]], Gradients[Tensor]]) -> list[Outcome]:
    return gradients(Overflowing(case.implementation, change), PROBLEM, of="both", exponent=EXPONENT)


@pytest.mark.parametrize("case", [CHUNK, TOKENS], ids=lambda case: case.implementation)
def test_gradients_that_fit_pass_beside_others_that_overflow(case: Case) -> None:
    found = {outcome.output: outcome for outcome in judged(case, lambda x: x)}
    assert {name for name, outcome in found.items() if outcome.status is Status.PASS} == case.judged
    rest = [outcome for name, outcome in found.items() if name not in case.judged]
    assert rest and all(outcome.status is Status.SKIP and outcome.message.startswith(f"{outcome.output}: it overflows") for outcome in rest)


FAULTS: dict[str, tuple[Case, str, Callable[[Gradients[Tensor]], Gradients[Tensor]]]] = {
    "dv halved": (CHUNK, "dv", lambda x: replace(x, dv=x.dv / 2)),
    "gradient of the initial state dropped": (CHUNK, "d_initial_state", lambda x: replace(x, d_initial_state=0 * x.d_initial_state)),
    "dv non-finite like dg": (CHUNK, "dv", lambda x: replace(x, dv=torch.where(x.dv.abs() > 1e3, NAN, x.dv))),
    "dv of the wrong sign, token by token": (TOKENS, "dv", lambda x: replace(x, dv=-x.dv)),
    "dg without its last token": (TOKENS, "dg", lambda x: replace(x, dg=torch.cat([x.dg[:, :-1], 0 * x.dg[:, -1:]], 1))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_calls_that_overflow_elsewhere_is_rejected(fault: str) -> None:
    case, output, change = FAULTS[fault]
    found = {outcome.output: outcome.status for outcome in judged(case, change)}
    assert {name for name, status in found.items() if status.rejects} == {output}
    milder = PROBLEM.replace(value="normal")
    assert all(outcome.status is Status.PASS for outcome in gradients(Overflowing(case.implementation, change), milder, of="both"))


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
    question = Question("gradients", PROBLEM, {"of": "both", "exponent": EXPONENT})
    assert {*Call(question, find("eager"), PROBLEM).yardstick()} == CHUNK.judged


def test_a_call_in_which_every_output_overflows_concludes_nothing() -> None:
    adapter, mild = find("eager"), PROBLEM.inputs()
    inputs = replace(mild, initial_state=mild.state * 1e6)
    (found,) = outcomes(adapter, inputs, lambda: dict(zip(("o", "final_state"), vars(adapter.forward(inputs)).values(), strict=False)))
    assert found.status is Status.SKIP and found.output == "call"


def test_one_reference_kernel_that_overflows_excuses_an_output_where_none_is_finite_throughout() -> None:
    fits, beyond = torch.ones(2), torch.tensor([1.0, torch.inf])
    runs = {"first": (fits, beyond, fits), "second": (fits, fits, beyond)}
    assert finite_runs(runs, iter, single=False) == {} and finite_runs(runs, iter, single=True) == runs
    by_output = {name: OutputRuns([run[i] for run in runs.values()], [fits]) for i, name in enumerate("abc")}
    assert finite_outputs(by_output) == ["a"]
    assert finite_outputs({"a": OutputRuns([fits], [beyond])}) == ["a"]
    assert finite_outputs({**by_output, "a": OutputRuns([fits, fits], [beyond])}) == []
