"""How a verdict leaves its test: a short failure, a row of the record, a line of the terminal
summary.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kdaverify.checks.status import Status
from kdaverify.plugin.judging import trim
from kdaverify.verdicts.verdict import Verdict
from tests.rows import ROOT, row

pytestmark = pytest.mark.whole_run

Pytest = Callable[..., pytest.RunResult]
Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

SHRINKING = """
from hypothesis import given
from hypothesis import strategies as st
@given(n=st.integers(0, 10**6))
def test_forward(judge, n):
    report(judge, Status.FAIL if n >= 100 else Status.PASS, case=str(n))
"""


def test_a_rejection_is_short_and_shows_no_line_of_ours(suite: Suite, run: Pytest) -> None:
    suite(forward="def test_forward(judge): report(judge, Status.FAIL)")
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL: o is off", "port: REJECT*", "*- forward FAIL: 1 verdict"])
    assert "Traceback" not in result.stdout.str()
    assert "def report" not in result.stdout.str()


def test_a_harness_exception_keeps_its_traceback_and_is_no_rejection(
    suite: Suite, run: Pytest
) -> None:
    suite(forward="def test_forward(judge):\n    report(judge)\n    raise KeyError('ours')")
    result = run()
    result.stdout.fnmatch_lines(
        [
            "*KeyError: 'ours'*",
            "port: HARNESS ERROR*",
            "*- KeyError: 'ours', in test_forward.py::test_forward?port?",
        ]
    )


def test_of_a_shrunk_failure_the_first_and_the_smallest_case_stay(suite: Suite, rows: Rows) -> None:
    suite(forward=SHRINKING)
    found = rows("--profile=nightly", "--kda-seed=0")
    failing = [verdict.case for verdict in found if verdict.status is Status.FAIL]
    assert len(failing) == 2
    assert failing[1] == "100"
    assert found[-1].case == "100"


def test_trimming_keeps_every_output_once_and_nothing_between() -> None:
    calls = [
        ("a", Status.PASS),
        ("b", Status.FAIL),
        ("c", Status.PASS),
        ("d", Status.FAIL),
        ("e", Status.PASS),
        ("d", Status.FAIL),
    ]
    reported = [
        row(status, case=case, output=output)
        for case, status in calls
        for output in ("o", "final_state")
    ]
    assert [(v.case, v.output) for v in trim(reported)] == [
        (case, output) for case in "abd" for output in ("o", "final_state")
    ]
    assert trim(reported[:2]) == tuple(reported[:2])


def test_a_kernel_that_fails_once_and_passes_once_is_rejected_as_such(
    suite: Suite, run: Pytest
) -> None:
    body = SHRINKING.replace(
        "n >= 100", "n >= 100 and not CALLS.append(n) and len(CALLS) == 1"
    ).replace("@given", "CALLS = []\n@given")
    suite(forward=body)
    run().stdout.fnmatch_lines(
        ["not repeatable: the same call failed once and passed once", "port: REJECT*"]
    )


def test_what_cannot_run_here_is_one_skip_with_the_reason(
    suite: Suite, run: Pytest, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(
        forward="def test_forward(judge, gate): report(judge)",
        resume="def test_resume(judge): report(judge)",
    )
    absent = "\nport.missing = lambda: 'pip install it'\n"
    port = pytester.path / "port.py"
    port.write_text(port.read_text() + absent)
    result = run("-rs")
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*pip install it",
            "port: NOT ENOUGH EVIDENCE*",
            "*every case was skipped, pip install it",
        ]
    )
    (verdict,) = rows()
    assert (verdict.status, verdict.message) == (Status.SKIP, "pip install it")
    refused = run("--require-impl", "-rs")
    refused.stdout.fnmatch_lines(
        ["SKIPPED*port is required, but pip install it", "port: NOT ENOUGH EVIDENCE*"]
    )
    assert (result.ret, refused.ret) == (0, 3)


def test_a_wrong_convention_is_reported_once_and_nothing_else_is_scored(
    suite: Suite, rows: Rows, pytester: pytest.Pytester
) -> None:
    suite(
        conventions="def test_conventions(judge): judge.conventions()",
        forward="def test_forward(judge, dtype): report(judge)",
    )
    port = pytester.path / "port.py"
    port.write_text(port.read_text().replace("dtypes=", 'state="vk", dtypes='))
    found = rows()
    assert [(v.property, v.status) for v in found] == [
        ("conventions", Status.CONVENTION),
        ("forward", Status.SKIP),
        ("forward", Status.SKIP),
    ]
    assert "state='vk', but behaves as state='kv'" in found[1].message


def test_warnings_of_a_kernel_are_its_own_affair(suite: Suite, run: Pytest) -> None:
    suite(
        forward=(
            "import warnings\ndef test_forward(judge): warnings.warn('old API',"
            " DeprecationWarning); report(judge)"
        )
    )
    # This process has imported the plugin already, which pytest would warn of where it is installed
    # too.
    run("-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning").assert_outcomes(
        passed=1, warnings=1
    )


@pytest.mark.parametrize("way", ["checkout", "installed"])
def test_the_plugin_is_loaded_once_in_a_checkout_installed_or_not(
    suite: Suite, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    suite()
    if way == "installed":
        package = pytester.mkdir("site") / "kdaverify-0.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: kdaverify\nVersion: 0.0\n")
        (package / "entry_points.txt").write_text(
            "[pytest11]\nkdaverify.plugin = kdaverify.plugin\n"
        )
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(package.parent), str(ROOT))))
    suites = ROOT / "suites"
    result = pytester.runpytest_subprocess(
        suites, "--impl=port.py", "--collect-only", "-q", "-k", "conventions", "--trace-config"
    )
    assert result.ret == 0, result.stderr.str()
    active = [
        line
        for line in result.outlines
        if line.startswith("PLUGIN registered: <module 'kdaverify.plugin'")
    ]
    assert len(active) == 1, active
    result.stdout.fnmatch_lines(["*test_conventions?port?"])
