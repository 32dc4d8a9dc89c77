"""From the suite to the terminal summary: a borderline failure never stops a test, and is decided
once, when Hypothesis has done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.checks import recheck as fresh_seeds
from kdaverify.checks.borderline import RetestFinding
from kdaverify.checks.status import Status
from kdaverify.verdicts.record import read
from tests.verdicts.louder import PROBLEM, factor_for

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]

PORT = """
from tests.verdicts.louder import PROBLEM, Louder
port = Louder(FACTOR, ONLY)
"""
DRAWN = """
from hypothesis import given
from hypothesis import strategies as st
from tests.verdicts.louder import PROBLEM
@given(seed=st.sampled_from(SEEDS))
def test_forward(judge, seed): judge(PROBLEM.replace(seed=seed))
"""


@pytest.fixture
def plant(
    pytester: pytest.Pytester, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Has port.py miss its tolerance by a little."""

    def write(ratio: float, only: str, seeds: str) -> None:
        monkeypatch.setattr(fresh_seeds, "SEEDS", 12)
        monkeypatch.setattr(fresh_seeds, "LOOKS", (12,))
        suite(forward=DRAWN.replace("SEEDS", seeds))
        (pytester.path / "port.py").write_text(
            PORT.replace("FACTOR", str(factor_for(ratio))).replace("ONLY", only)
        )

    return write


def test_a_borderline_failure_that_passed_on_retest_lets_the_test_pass_and_is_reported(
    plant: Callable[..., None], run: Pytest, pytester: pytest.Pytester
) -> None:
    plant(1.2, "PROBLEM", "(0, PROBLEM.seed, 7)")
    result = run("--record=r.jsonl", "--profile=acceptance")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 borderline failure: passed on re-test at fresh seeds*"])
    rows = [v for v in read(Path(pytester.path) / "r.jsonl").verdicts if v.recheck is not None]
    assert {(v.status, v.case) for v in rows} == {(Status.PASS, PROBLEM.id)}


def test_a_confirmed_one_rejects_with_what_fresh_seeds_said(
    plant: Callable[..., None], run: Pytest, pytester: pytest.Pytester
) -> None:
    plant(1.3, "None", "(PROBLEM.seed,)")
    result = run("--record=r.jsonl", "--profile=acceptance")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*borderline, failed again on re-test at 12 fresh seeds*", "louder: REJECT*"]
    )
    failing = [v for v in read(Path(pytester.path) / "r.jsonl").verdicts if v.status.rejects]
    assert any(v.recheck and v.recheck.finding is RetestFinding.CONFIRMED for v in failing)


def test_none_is_run_again_once_another_test_failed_for_certain(
    plant: Callable[..., None], run: Pytest, suite: Suite, pytester: pytest.Pytester
) -> None:
    plant(1.2, "PROBLEM", "(PROBLEM.seed,)")
    near = (pytester.path / "test_forward.py").read_text()
    suite(
        forward=(
            "def test_it(judge): report(judge, Status.FAIL, ratio=200.0, statistic='rms',"
            ' problem=\'{"op":"kda"}\')'
        )
    )
    (pytester.path / "test_panel.py").write_text(near)
    (pytester.path / "port.py").write_text(
        PORT.replace("FACTOR", str(factor_for(1.2))).replace("ONLY", "PROBLEM")
    )
    result = run("--record=r.jsonl", "--profile=acceptance")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["1 borderline failure, at most 1.5 times the tolerance, not tested at*"]
    )
    (found,) = (v for v in read(Path(pytester.path) / "r.jsonl").verdicts if v.recheck is not None)
    assert (
        found.recheck is not None
        and found.recheck.finding is RetestFinding.UNDECIDED
        and found.recheck.seeds == 0
    )
