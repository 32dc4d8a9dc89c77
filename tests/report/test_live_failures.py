"""A failure is printed when it comes, once for its kind."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kdaverify.checks.status import Status
from kdaverify.report.progress import MOST, LiveFailures
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row


def printed(*verdicts: Verdict) -> list[str]:
    out = StringIO()
    live = LiveFailures(Console(file=out, width=80))
    for verdict in verdicts:
        report = pytest.TestReport("test", ("f", 0, "t"), {}, "failed", None, "call")
        vars(report)["kdaverify"] = {"verdicts": [verdict.model_dump_json()]}
        live.pytest_runtest_logreport(report)
    return out.getvalue().splitlines()


def test_the_first_of_a_kind_gets_a_line_and_no_later_one() -> None:
    lines = printed(
        row(),
        row(Status.FAIL, message="o: 12x\n  worst"),
        row(Status.FAIL, case="kda-1", output="final_state"),
        row(),
    )
    assert lines == ["   0 s  port: forward FAIL  o: 12x"]


def test_kinds_beyond_a_number_wait_for_the_summary() -> None:
    assert (
        len(printed(*(row(Status.FAIL, property=f"law{number}") for number in range(MOST + 3))))
        == MOST
    )


def test_reports_without_verdicts_say_nothing() -> None:
    out = StringIO()
    LiveFailures(Console(file=out)).pytest_runtest_logreport(
        pytest.TestReport("t", ("f", 0, "t"), {}, "failed", None, "call")
    )
    assert out.getvalue() == ""
