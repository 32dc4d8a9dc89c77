"""Over a run a tenth more error is a rejection, though no case of it is; kernels that compute as a
conforming one does pass.
"""

from __future__ import annotations

import math

import pytest

from kdaverify.verdicts.decision import Expected, Ruling, decide
from kdaverify.verdicts.paired import FEWEST, paired
from tests.verdicts.paired_runs import run

EXPECTED = Expected("port", dtypes=("bf16",), outputs=("o",), properties=("forward",))


@pytest.mark.parametrize("rise", [0.93, 1.0, 1.03])
@pytest.mark.parametrize("member", [0, 2])
def test_a_conforming_kernel_is_accepted(rise: float, member: int) -> None:
    verdicts = run(rise, member=member)
    (found,) = paired(verdicts)
    assert not found.raised and found.ratio == pytest.approx(rise, abs=0.02) and found.cases == 40
    assert decide(verdicts, EXPECTED).ruling is Ruling.ACCEPT


@pytest.mark.parametrize("member", [0, 1])
def test_a_tenth_more_error_over_the_run_is_rejected_with_its_figures(member: int) -> None:
    decision = decide(run(1.1, member=member), EXPECTED)
    assert decision.ruling is Ruling.REJECT and not decision.failures
    assert decision.reasons[0].startswith("o bf16: over 40 cases the rms error is 1.")


def test_the_figure_of_a_run_names_its_limits() -> None:
    (found,) = paired(run(1.0))
    assert str(found).endswith(
        f"(lower 99% confidence limit {found.limit:.2f}; above 1.05 it is rejected)"
    )
    assert "the rms error is 1.00 times" in str(found)


def test_a_tenth_more_error_of_a_gradient_is_rejected_too() -> None:
    assert (
        decide([*run(1.0), *run(1.1, property="gradients", output="dg")], EXPECTED)
        .reasons[0]
        .startswith("dg bf16")
    )


def test_few_cases_conclude_nothing_and_repeats_of_a_case_count_once() -> None:
    few = run(1.5, cases=FEWEST - 1)
    assert paired(few) == () and paired(few * 3) == ()
    assert paired(run(1.1) * 2) == paired(run(1.1))


def test_formats_contracts_and_cases_that_lack_a_conforming_kernel_are_kept_apart() -> None:
    other = run(1.1, contract="chunk32-bf16")
    lacking = [
        v.model_copy(update={"peers": v.peers[:2], "case": f"{v.case}-x"})
        for v in run(2.0, cases=5)
    ]
    found = paired([*run(1.0), *other, *lacking])
    assert [(p.contract, p.raised, p.cases) for p in found] == [
        ("chunk32-bf16", True, 40),
        ("chunk64-bf16", False, 40),
    ]


def test_what_is_no_whole_call_does_not_count() -> None:
    assert paired(run(1.1, property="stages")) == ()


@pytest.mark.parametrize("cases", [40, 41])
def test_the_median_is_a_case_s_own_the_lower_of_two(cases: int) -> None:
    (found,) = paired(run(1.0, cases=cases))
    ratios = sorted(verdict.peers[0] for verdict in run(1.0, cases=cases))
    assert found.ratio == pytest.approx(ratios[(cases - 1) // 2], rel=1e-12)


def test_a_kernel_unlike_any_conforming_one_is_held_to_all_of_them() -> None:
    (found,) = paired(run(1.0, scatter=0.3))
    assert not found.raised and math.isfinite(found.limit)
