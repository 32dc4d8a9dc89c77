"""A right kernel gets none of the lines that explain a failure, whatever its conventions: neither
on the terminal of its run, nor where the diagnosis is run on its cases as if they had
failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import cache
from typing import Final

import pytest

from benchmarks.suite_runs import property_tests, verdicts
from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.status import Status
from kdaverify.diagnosis.common_factor import common_factors
from kdaverify.diagnosis.contrast import experiments
from kdaverify.diagnosis.diagnose import NOTHING, diagnose
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.session import explained
from kdaverify.faults.conforming import JOINT, covering_rows
from kdaverify.operator import operator_of, problem_from_json
from kdaverify.verdicts.verdict import Verdict

pytestmark = pytest.mark.whole_run
MODULE: Final = "kdaverify.faults.conforming:MATRIX"
KERNELS: Final = [JOINT.join(row.values()) for row in covering_rows()]
TRIED: Final = 3
"""Of them in this test; each takes ten seconds."""
LINES: Final = (
    "fails only where",
    "fails where",
    "apart from these",
    "changing one thing at a time",
    "the error itself",
    "results differ between runs",
    "matches ",
    "diagnosis:",
    "further failure",
    "smallest case that fails",
)
"""What explains a failure, as the terminal has it."""
EVERY: Final = 12
"""One case of so many of smoke is judged here; the terminal's is a whole suite."""


@cache
def judged(name: str) -> tuple[Adapter, tuple[Verdict, ...]]:
    spec = f"{MODULE}.{name}"
    adapter = find(spec)
    chosen = [
        test
        for test in property_tests(adapter, "smoke")
        if test.property in ("panel", "combined", "gradients")
    ][::EVERY]
    return adapter, tuple(row for test in chosen for row in verdicts(adapter, test, spec))


def as_if_failed(rows: tuple[Verdict, ...]) -> list[Verdict]:
    """The same cases, called failures: what explains them has to find out that they are none."""
    return [
        row.model_copy(update={"status": Status.FAIL}) if row.status is Status.PASS else row
        for row in rows
    ]


@pytest.mark.rotates
@pytest.mark.parametrize("name", KERNELS[:TRIED])
def test_nothing_is_said_of_a_right_kernel(name: str) -> None:
    adapter, rows = judged(name)
    assert rows and not any(row.status.rejects for row in rows)
    assert common_factors(rows) == []
    cases = [
        PropertyCase(row.property, problem_from_json(row.problem), row.detail)
        for row in rows
        if row.status is Status.PASS
    ]
    assert experiments(cases, adapter, seconds=3.0) == []
    first = next(case for case in cases if case.property != "combined")
    found = diagnose(adapter, first, seconds=1.0)
    assert found.passes and found.silent == NOTHING and not found.fits
    until = time.monotonic() + 5.0
    assert not operator_of(first.problem).explain_error(first, adapter, until=until)


@pytest.mark.parametrize("name", KERNELS[:1])
def test_cases_that_pass_are_explained_by_nothing(name: str) -> None:
    adapter, rows = judged(name)
    for fields in explained(as_if_failed(rows), adapter, seconds=4.0).values():
        assert not {*fields} & {"same_as", "contrast"}
        assert fields.get("diagnosis", "") in ("", NOTHING)


def test_a_run_of_a_right_kernel_prints_no_line_about_failures() -> None:
    words = ("verify", "--impl", f"{MODULE}.{KERNELS[0]}", "--only", "panel", "--workers", "1")
    done = subprocess.run(
        [sys.executable, "-m", "kdaverify", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "0 failing verdicts" in done.stdout, done.stdout + done.stderr
    assert [line for line in LINES if line in done.stdout] == []
