"""Drift distinguishes an error at every token, chunk, resume or step from one that a conforming
kernel makes once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.drift import carriers
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.drift import measure, route
from kdaverify.checks.growth import Growth
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.axes import Dtype
from kdaverify.problems.drift_probes import CASES, DriftCase, Way, drift_problem, shortened
from tests.checks.drifting import (
    Member,
    decay_in_bf16,
    resumed_from_bf16,
    right,
    state_in_bf16,
    state_rounded,
    stepping,
)


def memory(
    dtype: Dtype = "bf16", *, tokens: int = 4096, samples: int = 4, probe: str = "memory"
) -> Problem:
    return drift_problem(probe, dtype, tokens=tokens, samples=samples, seed=3)


def statuses(adapter: Adapter, problem: Problem, way: Way = "uncut") -> dict[str, Status]:
    return {
        outcome.output: outcome.status for outcome in check("drift", adapter, problem, {"way": way})
    }


def state(adapter: Adapter, problem: Problem, way: Way = "uncut") -> Growth:
    return next(
        growth
        for growth in measure(adapter, problem, way).growths
        if growth.output == "final_state"
    )


BOTH = {"o": Status.PASS, "final_state": Status.PASS}


@pytest.mark.parametrize(
    ("faulty", "least", "most"),
    [(state_in_bf16, 0.3, 0.8), (decay_in_bf16, 0.8, 1.2)],
    ids=["state", "decay"],
)
def test_a_narrow_carry_is_reported_from_a_wide_one_by_its_slope(
    faulty: Any, least: float, most: float
) -> None:
    growth = state(faulty, memory())
    assert least < growth.slope < most and growth.slope_limit > 0.05
    assert growth.ratios["level"] > 1 and growth.ratios["slope"] > 1


def test_a_wide_carry_does_not_drift() -> None:
    growth = state(right, memory())
    assert abs(growth.slope) < 0.02
    assert max(growth.ratios.values()) < 1


def test_a_decay_that_rounds_is_a_bias() -> None:
    growth = state(decay_in_bf16, memory())
    assert growth.bias > 0.95


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_eager_does_not_drift(dtype: Dtype) -> None:
    assert statuses(find("eager"), memory(dtype)) == BOTH


def test_a_recurrent_kernel_is_held_against_recurrent_ones() -> None:
    assert statuses(find("eager-recurrent"), memory("fp32", tokens=1024)) == BOTH


@pytest.mark.rotates
@pytest.mark.parametrize("probe", ["held", "faint", "writes"])
def test_a_right_kernel_passes_every_probe(probe: str) -> None:
    assert statuses(right, memory(tokens=1024, probe=probe)) == BOTH


@pytest.mark.parametrize("probe", ["held", "faint"])
def test_a_narrow_state_fails_every_memory(probe: str) -> None:
    assert statuses(state_in_bf16, memory(tokens=1024, probe=probe))["final_state"] is Status.FAIL


def test_emulated_members_pass() -> None:
    _, *others = carriers(contract_from_name("chunk64-bf16"), FORMATS["bf16"])
    assert [statuses(Member(member, "bf16"), memory(tokens=1024)) for member in others] == [
        BOTH
    ] * len(others)


@pytest.mark.parametrize("probe", ["memory", "faint"])
def test_operands_of_matrix_units_may_be_cut_to_tf32(probe: str) -> None:
    fp32 = FORMATS["fp32"]
    cut = next(
        member
        for member in ensemble(contract_from_name("chunk64-tf32"), fp32)
        if member.name == "matrix units that truncate"
    )
    assert statuses(Member(cut, "fp32"), memory("fp32", tokens=1024, probe=probe)) == BOTH


@pytest.mark.parametrize("seed", [1, 3])
def test_a_chunk_longer_than_the_first_length_is_no_drift(seed: int) -> None:
    problem = drift_problem("memory", "bf16", tokens=4096, samples=6, seed=seed)
    plain, *_ = carriers(contract_from_name("chunk128-bf16"), FORMATS["bf16"])
    narrow = replace(plain, stages=replace(plain.stages, state=state_rounded))
    assert abs(state(Member(plain, "bf16"), problem).slope) < 0.01
    assert state(Member(narrow, "bf16"), problem).ratios["slope"] > 5


def test_a_state_rounded_at_every_resume_is_caught_there_and_nowhere_else() -> None:
    assert statuses(resumed_from_bf16, memory(), "resumed")["final_state"] is Status.FAIL
    assert statuses(right, memory(), "resumed") == BOTH
    assert statuses(resumed_from_bf16, memory(tokens=1024)) == BOTH


def test_a_step_that_decays_by_one_percent_more_is_caught() -> None:
    problem = memory(probe="held", tokens=512)
    assert statuses(stepping(gate=1.01), problem, "decoded")["final_state"] is Status.FAIL
    assert statuses(stepping(gate=1.0), problem, "decoded") == BOTH


def test_kernels_that_cannot_be_resumed_are_skipped_with_the_reason() -> None:
    class NoState(Member):
        def exposes(self, problem: Problem) -> tuple[str, ...]:
            del problem
            return ("o",)

    plain, *_ = carriers(contract_from_name("chunk64-bf16"), FORMATS["bf16"])
    (outcome,) = check("drift", NoState(plain, "bf16"), memory(tokens=512), {"way": "resumed"})
    assert outcome.status is Status.SKIP and "does not expose the final state" in outcome.message


def test_float64_kernels_are_skipped() -> None:
    (outcome,) = check("drift", find("eager"), memory("fp64", tokens=512), {})
    assert outcome.status is Status.SKIP and "too coarse" in outcome.message


def test_routes_end_with_the_run_and_begin_six_octaves_before() -> None:
    assert route(4096, "uncut").lengths == (64, 256, 1024, 4096)
    assert route(131072, "resumed", factor=2).lengths[0] == 2048
    decoded = route(1024, "decoded")
    assert (
        decoded.at == (772, 784, 832, 1024)
        and decoded.lengths == (4, 16, 64, 256)
        and decoded.cuts[0] == 768
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_has_a_route_for_interpreted_kernels_too(case: DriftCase) -> None:
    problem = case.problem("bf16")
    for tested in (problem, shortened(problem)):
        at = route(tested.T, case.way).at
        assert at[-1] == tested.T and len(at) > 1 and tested.B >= 4


@pytest.mark.parametrize("tokens", [64, 4100])
def test_too_few_tokens_or_a_broken_number_is_the_caller_s_mistake(tokens: int) -> None:
    with pytest.raises(ValueError, match=r"wanted a multiple of 64 tokens, at least 128"):
        check("drift", right, memory(tokens=tokens), {})
