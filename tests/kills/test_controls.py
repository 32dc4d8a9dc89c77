"""A rejection is a kill only where every conforming kernel passes the same test,
and where it is beyond doubt.
"""

from __future__ import annotations

import pytest

from kdaverify.adapters import find
from kdaverify.checks.borderline import Recheck, RetestFinding
from kdaverify.checks.status import Status
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.conforming_kernels import CONFORMING
from kdaverify.kills.controls import ConformingControls, retested
from kdaverify.problems import Problem
from kdaverify.verdicts.verdict import Verdict
from tests.faults.triggers import PLAIN

PROBLEM = Problem.model_validate({**PLAIN, "T": 70})
QUESTION = Verdict(
    implementation="",
    property="forward",
    dtype="fp32",
    case=PROBLEM.id,
    problem=PROBLEM.to_json(),
    output="o",
    status=Status.FAIL,
)


@pytest.fixture(scope="module")
def killer() -> Verdict:
    """What H1 is rejected for."""
    return next(
        reported for reported in retested(find("fault:H1"), QUESTION) if reported.status.rejects
    )


def test_a_rejection_stands_where_conforming_kernels_pass(killer: Verdict) -> None:
    assert ConformingControls(FAULTS["H1"], CONFORMING).objection(killer) == ""


def test_it_falls_where_a_conforming_kernel_is_rejected_too(killer: Verdict) -> None:
    assert "fault:H1 is rejected too" in ConformingControls(FAULTS["H1"], ("fault:H1",)).objection(
        killer
    )


def test_a_borderline_failure_that_nothing_confirms_is_no_kill(killer: Verdict) -> None:
    unclear = killer.model_copy(update={"recheck": Recheck(RetestFinding.UNDECIDED)})
    assert "no fresh seed confirms" in ConformingControls(FAULTS["H1"], CONFORMING).objection(
        unclear
    )


@pytest.mark.parametrize(("fault", "stands"), [("H1", False), ("L8", True)])
def test_a_call_that_breaks_counts_where_the_fault_is_one_that_breaks_calls(
    fault: str, *, stands: bool
) -> None:
    broken = QUESTION.model_copy(
        update={"status": Status.ERROR, "output": "call", "message": "RuntimeError: no"}
    )
    assert (ConformingControls(FAULTS[fault], CONFORMING).objection(broken) == "") is stands
