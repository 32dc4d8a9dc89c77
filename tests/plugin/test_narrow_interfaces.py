"""Kernels compiled for one width, or for bounded gates, are tested as far as they can be, and what
is not tested is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kdaverify.adapters.eager import EAGER, Eager
from kdaverify.adapters.fitting import fitted
from kdaverify.checks.calls import questions
from kdaverify.checks.status import Status
from kdaverify.operators.pointwise.call import ActivationCall
from kdaverify.plugin.expected import expected
from kdaverify.plugin.options import Subject
from kdaverify.problems import Domain, Problem, panel
from kdaverify.problems.panel import NamedProblem
from kdaverify.problems.regimes.gate import EXTREME
from kdaverify.verdicts.judge import Judge
from kdaverify.verdicts.verdict import Verdict
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs


class Narrow(Eager):
    """The embedded kernel behind the interface of a compiled one."""

    widths = (16, 128)

    def __init__(self, *refused: str) -> None:
        super().__init__("narrow", {"bf16": "chunk64-bf16"})
        self._refused = refused

    def supports(self, problem: Problem) -> str | None:
        if not {problem.K, problem.V} <= {*self.widths}:
            return "K and V of 16 or 128"
        return "gates of at least -5" if problem.gate in self._refused else None


def not_applicable(adapter: Eager) -> dict[str, str]:
    return dict(expected(Subject("narrow", adapter, None), set(), "smoke").not_applicable)


@pytest.mark.parametrize("entry", panel("bf16", "smoke"), ids=lambda entry: entry.name)
def test_the_panel_comes_at_widths_that_the_kernel_takes(entry: NamedProblem) -> None:
    tested = fitted(Narrow(), entry.problem)
    assert Narrow().supports(tested) is None
    assert tested == entry.problem.replace(K=tested.K, V=tested.V)
    assert fitted(EAGER, entry.problem) == entry.problem


def test_widths_that_it_takes_are_left_alone() -> None:
    problem = panel("bf16", "smoke")[0].problem.replace(K=128, V=16)
    assert fitted(Narrow(), problem) == problem


def test_extreme_gates_are_listed_as_not_applicable_where_a_kernel_takes_none() -> None:
    assert (
        not_applicable(Narrow(*EXTREME))["extreme_gates"]
        == "it takes no extreme gate (gates of at least -5)"
    )


def test_one_that_takes_some_is_not() -> None:
    assert "extreme_gates" not in not_applicable(Narrow(*EXTREME[1:]))
    assert "extreme_gates" not in not_applicable(Narrow())


def test_activations_are_listed_as_not_applicable_where_a_kernel_exposes_none() -> None:
    class Bare(Narrow):
        def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
            return {}

    assert not_applicable(Bare())["activations"] == "it exposes no activation, beta or l2norm"
    assert "activations" not in not_applicable(Narrow())


class NarrowBackward(Eager):
    """The embedded kernel whose backward takes neither grouped heads nor another scale,
    and raises for them.
    """

    backward_domain = Domain(head_ratios=(1,), scales=False)

    def __init__(self) -> None:
        super().__init__("narrow-backward", {"bf16": "chunk64-bf16"})

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        if inputs.H != inputs.HV or abs(inputs.factor - inputs.K**-0.5) > 1e-9:
            raise ForwardOnlyError("its backward takes neither")
        return super().gradients(inputs, cotangents)


GROUPED = Problem(
    B=1,
    T=9,
    H=1,
    HV=2,
    K=4,
    V=4,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=0,
).replace(scale=0.25)


@pytest.mark.parametrize(
    ("property_name", "detail"),
    [
        ("gradients", {"of": "both", "exponent": 0}),
        ("combined", {"direction": "gradients of o"}),
        ("cotangent_linearity", {"law": "negation"}),
        ("self_consistency", {}),
    ],
)
def test_gradients_are_tested_on_what_the_backward_takes(
    property_name: str, detail: dict[str, Any]
) -> None:
    found = list[Verdict]()
    Judge(NarrowBackward(), found.append, property_name, fits=True)(GROUPED, **detail)
    assert {verdict.status for verdict in found} == {Status.PASS}
    assert all((verdict.HV, verdict.H) == (1, 1) or verdict.HV == verdict.H for verdict in found)


def test_the_forward_keeps_what_the_backward_does_not_take() -> None:
    found = list[Verdict]()
    Judge(NarrowBackward(), found.append, "forward", fits=True)(GROUPED)
    assert {(verdict.status, verdict.HV) for verdict in found} == {(Status.PASS, 2)}


def test_rules_of_calls_about_the_backward_are_posed_inside_its_domain() -> None:
    posed = [one for one in questions(NarrowBackward(), "acceptance") if one.rule.backward]
    assert posed and all(one.problem.H == one.problem.HV for one in posed)
    assert any(
        one.problem.H != one.problem.HV
        for one in questions(NarrowBackward(), "acceptance")
        if not one.rule.backward
    )


def test_what_the_backward_does_not_take_is_listed() -> None:
    outside = expected(Subject("narrow", NarrowBackward(), None), set(), "smoke").outside
    assert (
        "gradients of a scale other than K^-1/2 (outside the declared domain of the backward)"
        in outside
    )
