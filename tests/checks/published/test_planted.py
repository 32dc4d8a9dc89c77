"""Broken and conforming kernels on real problems: which rules see them, what is never changed by
it, and whose errors are the benchmark.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.published.registry import RULES
from kdaverify.checks.resume import resume
from kdaverify.checks.stages import stages
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.published import NamedBenchmark, Opinions, benchmark_named, opinions
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from tests.checks.backwards import Changed
from tests.checks.published.broken import BROKEN, CONFORMING, Kernel

REGIMES: dict[str, Any] = {
    "gate": "log-sigmoid",
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}
GENERIC = Problem(B=1, T=130, H=1, HV=1, K=16, V=16, dtype="bf16", seed=3, **REGIMES)
COHERENT = GENERIC.replace(gate="slow", key="coherent-0.9")
SMALL = GENERIC.replace(state="absent", value="tiny")
ALARMED = {"ascend-single", "ascend-mixed", "torch-testing"}
"""Rules that fail the baseline reference kernel on the generic problem."""
ABSOLUTE = {
    *(
        "ascend-mixed",
        "fla",
        "fla-ci",
        "torch-testing",
        "kernelbench",
        "kernelbench-hard",
        "backendbench",
        "flashinfer-bench",
    ),
}
"""Rules with an absolute tolerance: an output below it may be anything."""


class Ported(Changed):
    """A kernel of the table behind the interface of an adapter."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(dtype="bf16")
        self._kernel = kernel

    def forward(self, inputs: Inputs) -> Output:
        o, final = self._kernel(inputs)
        return Output(o.to(inputs.q.dtype), final.float())


class Narrow(Changed):
    """A kernel that takes nothing."""

    def __init__(self) -> None:
        super().__init__(dtype="bf16")

    def supports(self, problem: Problem) -> str:
        return f"it takes no {problem.dtype} today"


def said(kernel: Kernel, problem: Problem) -> list[Opinions]:
    return opinions(forward(Ported(kernel), problem), problem, None)


def failing(kernel: Kernel, problem: Problem) -> set[str]:
    return {
        name
        for opinion in said(kernel, problem)
        for name, found in opinion.published.items()
        if found.says == "fail"
    }


def test_false_alarms_on_a_conforming_kernel_are_shown_as_they_are() -> None:
    assert failing(CONFORMING["plain"], GENERIC) == ALARMED


@pytest.mark.parametrize(
    ("broken", "problem", "blind", "seen"),
    [
        (
            "scaled by 1.02",
            GENERIC,
            {"tt-metal-pcc", "fla-ci", "kernelbench", "kernelbench-hard", "backendbench"},
            {"ascend-L0", "fla"},
        ),
        ("zeros", GENERIC, set[str](), {*RULES}),
        (
            "zeros",
            SMALL,
            ABSOLUTE,
            {"ascend-L0", "flash-attention", "attention-gym", "tt-metal-pcc"},
        ),
        ("doubling inverse, bf16", GENERIC, {*RULES} - ALARMED, ALARMED),
        ("doubling inverse, bf16", COHERENT, set[str](), {*RULES}),
        (
            "state in bf16",
            GENERIC,
            {"fla", "fla-ci", "kernelbench", "backendbench", "flashinfer-bench", "tt-metal-pcc"},
            ALARMED,
        ),
    ],
)
def test_what_rules_see_of_a_broken_kernel_depends_on_the_inputs(
    broken: str, problem: Problem, blind: set[str], seen: set[str]
) -> None:
    failed = failing(BROKEN[broken], problem)
    assert blind.isdisjoint(failed)
    assert seen <= failed


def judged(
    adapter: Adapter, problem: Problem, benchmark: NamedBenchmark | None = None
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    with suppress(Rejected):
        Judge(adapter, verdicts.append, "forward", benchmark=benchmark)(problem)
    return verdicts


def test_no_opinion_of_others_changes_a_verdict() -> None:
    plain, named = find("eager"), benchmark_named("eager-recurrent", isolate=None, limits=Limits())
    for adapter in (plain, Ported(BROKEN["zeros"])):
        emulated, other = judged(adapter, GENERIC), judged(adapter, GENERIC, benchmark=named)
        assert [v.status for v in emulated] == [v.status for v in other]
        assert [v.ratio for v in emulated] == [v.ratio for v in other]
        assert [v.published["ascend-L0"] for v in emulated] != [
            v.published["ascend-L0"] for v in other
        ]


def test_the_benchmark_is_the_plain_kernel_of_the_ensemble_or_the_one_that_was_named() -> None:
    named = benchmark_named("eager-recurrent", isolate=None, limits=Limits())
    o, final = judged(find("eager"), GENERIC)
    assert o.benchmark == final.benchmark == "the baseline reference kernel"
    assert o.published["ascend-L2"].says == "pass"
    o, final = judged(find("eager"), GENERIC, benchmark=named)
    assert o.benchmark == "eager-recurrent"
    assert final.published["flash-attention"].says == "fail"
    assert "--benchmark eager-recurrent" in o.replay


def test_a_benchmark_that_does_not_take_the_problem_leaves_its_rules_untested() -> None:
    for verdict in judged(find("eager"), GENERIC, benchmark=NamedBenchmark("narrow", Narrow())):
        assert verdict.benchmark == "changed: it takes no bf16 today"
        assert {
            name for name, found in verdict.published.items() if found.statistic == "no benchmark"
        } == {name for name, rule in RULES.items() if rule.benchmark}


@pytest.mark.parametrize("of", ["both", "o"])
def test_gradients_are_judged_too(of: str) -> None:
    problem = GENERIC.replace(T=20, K=8, V=8)
    found = opinions(gradients(find("eager"), problem, of=of), problem, None)
    assert all(set(opinion.published) == {*RULES} for opinion in found)
    assert {opinion.published["kernelbench"].says.value for opinion in found} == {"n/a"}


def test_parts_of_a_run_are_judged_as_one() -> None:
    problem = GENERIC.replace(T=20)
    found = opinions(resume(find("eager"), problem, cut=7), problem, None)
    assert [opinion.published["ascend-L0"].says.value for opinion in found] == ["pass", "pass"]


def test_nothing_is_said_of_what_is_no_output_of_a_call() -> None:
    problem = GENERIC.replace(T=20)
    outcomes = [
        *stages(find("eager"), problem),
        *forward(Changed(lambda y: Output(y.o[..., :1], y.final_state), dtype="bf16"), problem),
    ]
    assert outcomes
    assert opinions(outcomes, problem, None) == [Opinions()] * len(outcomes)


def test_the_layout_of_an_output_changes_no_figure() -> None:
    def turned(output: Output) -> Output:
        return replace(output, o=output.o.transpose(1, 2).contiguous().transpose(1, 2))

    assert [v.published for v in judged(Changed(turned, dtype="bf16"), GENERIC)] == [
        v.published for v in judged(find("eager"), GENERIC)
    ]


def test_infinities_survive_the_record() -> None:
    def lost(output: Output) -> Output:
        return replace(output, final_state=torch.full_like(output.final_state, torch.inf))

    for verdict in judged(Changed(lost, dtype="bf16"), GENERIC):
        assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_two_calls_of_different_sizes_that_both_fail_have_an_opinion_each() -> None:
    first, second = (Ported(BROKEN["zeros"]) for _ in range(2))
    longer = GENERIC.replace(T=GENERIC.T + 1)
    case = [*forward(first, GENERIC), *forward(second, longer)]
    for named in (None, NamedBenchmark("eager", find("eager"))):
        found = opinions(case, GENERIC, named)
        assert found == [*opinions(case[:2], GENERIC, named), *opinions(case[2:], longer, named)]
