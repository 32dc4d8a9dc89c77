"""A run that cannot be resumed is the kernel's fault, and is reported as such;
a right one resumes at every kind of cut.
"""

from __future__ import annotations

from typing import Any

import pytest

import kdaverify as kv
from kdaverify.adapters.registry import find
from kdaverify.checks.properties import check
from kdaverify.checks.resume import WAYS
from kdaverify.checks.status import Status
from kdaverify.problems import Problem

PROBLEM = Problem(
    B=1,
    T=70,
    H=1,
    HV=2,
    K=8,
    V=12,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [1, 17, 64, 69])
def test_a_right_kernel_resumes_at_every_kind_of_cut(way: str, cut: int) -> None:
    assert {
        outcome.status
        for outcome in check("resume", find("eager"), PROBLEM, {"cut": cut, "way": way})
    } == {Status.PASS}


def test_a_saved_state_that_is_not_finite_is_a_verdict_not_an_error_of_ours() -> None:
    @kv.kernel(name="port", contract="chunk64-bf16", dtypes=("bf16",))
    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
        return v.clone(), initial_state * float("nan")

    (outcome,) = check("resume", call, PROBLEM, {"cut": 16, "way": "chunk-chunk"})
    assert outcome.status is Status.NONFINITE
    assert "192 of 192 elements of the state saved after token 16" in outcome.message


def test_a_cut_outside_the_problem_is_the_caller_s_mistake() -> None:
    with pytest.raises(ValueError, match="longer than the cut"):
        check("resume", find("eager"), PROBLEM, {"cut": 70})
