"""The panel is fixed, named, and tests what the fault catalogue needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import pytest

from kdaverify.problems import DTYPES, PANEL, PROFILES, Problem, cost, panel
from kdaverify.problems.cost import GRADIENTS_LIMIT, gradients_are_quick
from kdaverify.problems.panel import REAL_SIZES

SMOKE = [entry.problem for entry in panel("bf16", "smoke")]
ACCEPTANCE = [entry.problem for entry in panel("bf16", "acceptance")]


def test_names_are_distinct_and_reasons_name_faults() -> None:
    assert len({entry.name for entry in PANEL}) == len(PANEL)
    assert len({entry.problem.id for entry in PANEL}) == len(PANEL)
    assert all(re.search(r"\([A-Z]{1,2}\d+(, [A-Z]{1,2}\d+)*\)$", entry.why) for entry in PANEL)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_larger_profile_tests_all_that_a_smaller_one_tests(dtype: str) -> None:
    tested = [{entry.problem.id for entry in panel(dtype, profile)} for profile in PROFILES]
    assert tested[0] < tested[1] < tested[2]
    assert all(entry.problem.dtype == dtype for entry in panel(dtype, "nightly"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smoke_panel_is_inexpensive(dtype: str) -> None:
    # Those about sizes alone are tested in one of the formats of a kernel: 2.8 s of `eager`.
    costs = [
        cost(entry.problem) / (len(DTYPES) if "smoke" in entry.one_format else 1)
        for entry in panel(dtype, "smoke")
    ]
    # The estimate is for heads of any width: the longest one takes 1.4 s of CPU time, gradients
    # included, of some 280 in a session of `eager`.
    assert max(costs) <= 0.35
    assert sum(costs) <= 1.6


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_no_problem_judged_in_balls_takes_more_than_seconds(dtype: str) -> None:
    assert all(cost(entry.problem) <= 3 for entry in panel(dtype, "nightly"))


def _lengths(problem: Problem) -> list[int]:
    return [length for _, _, length in problem.spans]


NeededCases: TypeAlias = Callable[[Problem], bool]

SMOKE_TESTS: dict[str, NeededCases] = {
    "asymmetric-state": lambda p: p.K != p.V and p.state == "asymmetric",
    "one-token": lambda p: p.T == 1,
    "short-tail": lambda p: 0 < p.T % 64 < 16 and p.state != "absent",
    "three-chunks": lambda p: p.T > 192 and p.state == "absent",
    "empty-ends": lambda p: _lengths(p)[0] == _lengths(p)[-1] == 0 and 0 in _lengths(p)[1:-1],
    "padding": lambda p: sum(_lengths(p)) < p.B * p.T,
    "grouped-heads": lambda p: p.HV == 3 * p.H,
    "many-heads": lambda p: p.B > 2 and p.H > 4 and p.HV > 3 * p.H,
    "identical-keys": lambda p: p.key == "identical" and p.beta == "one" and p.gate == "slow",
    "mixed-gates": lambda p: p.gate == "mixed",
    "overwrite": lambda p: (
        p.key == "one-hot" and p.beta == "one" and p.gate == "zero" and p.value == "powers-of-two"
    ),
    "pure-decay": lambda p: p.beta == "zero" and p.state == "large",
    "long-memory": lambda p: p.beta == "sparse" and p.T > 192,
    "batch": lambda p: p.B > 1,
    "two-key-tiles": lambda p: p.K == 256 and p.V > 128,
    "beyond-fp16": lambda p: p.value == "beyond-fp16",
    "two-value-tiles": lambda p: p.V == 256 and p.K > 128 and p.packed,
    "past-512-values": lambda p: p.V > 256 and p.state != "absent",
    "wide-group": lambda p: p.HV > 32 * p.H,
    "past-2048-tokens": lambda p: max(_lengths(p)) > 2048 and p.packed and p.gate == "slow",
}

ACCEPTANCE_TESTS: dict[str, NeededCases] = {
    "16-heads": lambda p: p.H == 16 and p.K == p.V == 128,
    "32-heads": lambda p: p.H == 32 and p.K == p.V == 128,
    "64-heads": lambda p: p.H == 64 and p.K == p.V == 128,
    "wide-key": lambda p: p.K > 128 and p.V > 128,
    "96-heads": lambda p: p.H == 96 and p.K == p.V == 128,
    "4096-tokens": lambda p: p.T == 4096,
    "past-4096-tokens": lambda p: p.T > 4096 and not p.packed and p.K * p.V < 64,
    "many-sequences": lambda p: p.N > 100,
    "all-empty": lambda p: not any(_lengths(p)),
    "consecutive-empties": lambda p: (
        any(a == b == 0 for a, b in pairwise(_lengths(p))) and any(_lengths(p))
    ),
    "wide-group": lambda p: p.HV == 8 * p.H,
}


@pytest.mark.parametrize("tested", SMOKE_TESTS)
def test_smoke_tests_what_inexpensive_tests_leave_out(tested: str) -> None:
    assert any(SMOKE_TESTS[tested](problem) for problem in SMOKE)


@pytest.mark.parametrize("tested", ACCEPTANCE_TESTS)
def test_acceptance_tests_real_shapes(tested: str) -> None:
    assert any(ACCEPTANCE_TESTS[tested](problem) for problem in ACCEPTANCE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_tested_at_real_widths_in_every_format_and_within_seconds(dtype: str) -> None:
    quick = [
        entry.problem
        for entry in panel(dtype, "acceptance")
        if gradients_are_quick(entry.problem, accelerated=False, balls=dtype in ("fp64", "fp32"))
    ]
    assert {entry.problem.id for entry in panel(dtype, "smoke")} <= {
        problem.id for problem in quick
    }
    assert any(problem.K == problem.V == 128 for problem in quick)
    assert max(cost(problem) for problem in quick) <= GRADIENTS_LIMIT[dtype]


def test_on_an_accelerator_only_balls_are_slow() -> None:
    assert all(
        gradients_are_quick(entry.problem, accelerated=True, balls=False) for entry in REAL_SIZES
    )
    assert not gradients_are_quick(
        REAL_SIZES[0].problem.replace(dtype="fp32"), accelerated=True, balls=True
    )
    assert not gradients_are_quick(REAL_SIZES[0].problem, accelerated=False, balls=False)


@pytest.mark.parametrize(
    ("dtype", "profile", "said"),
    [("fp8", "smoke", "no dtype named 'fp8'"), ("fp32", "weekly", "no profile named 'weekly'")],
)
def test_an_unknown_dtype_or_profile_is_refused(dtype: str, profile: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        panel(dtype, profile)


def test_gradients_of_16_bit_inputs_under_a_contract_of_fp32_are_as_small_as_those_of_fp32() -> (
    None
):
    """The contract of a port that declares none: at T = 4,096 its gradients would take balls 19
    minutes, and no acceptance could end.
    """
    long = next(entry.problem for entry in panel("bf16", "acceptance") if entry.problem.T == 4096)
    assert gradients_are_quick(long, accelerated=False, balls=False)
    assert not gradients_are_quick(long, accelerated=False, balls=True)
