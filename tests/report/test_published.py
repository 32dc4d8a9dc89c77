"""What others' standards would have said is counted beside ours,
shown on any width, and listed in the decision's JSON.
"""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kdaverify.checks.status import RuleOutcome, Status
from kdaverify.report.published import PublishedRuleCounts, opinions_table, standards_table, tallies
from kdaverify.report.summary import summary
from kdaverify.verdicts.decision import Expected, Ruling, decide
from kdaverify.verdicts.verdict import Opinion, Verdict
from tests.rows import row

LENIENT, STRICT, SILENT = (
    {"lenient": Opinion(says=RuleOutcome.PASS, statistic="ratio", value=0.5, limit=1.0)},
    {"strict": Opinion(says=RuleOutcome.FAIL, statistic="largest", value=2.5, limit=1.25)},
    {"silent": Opinion(says=RuleOutcome.NOT_APPLICABLE, statistic="no limit for fp32")},
)


def judged(status: Status = Status.PASS, benchmark: str = "emulated: plain") -> Verdict:
    return row(status, published={**LENIENT, **STRICT, **SILENT}, benchmark=benchmark)


def shown(*verdicts: Verdict, width: int = 100) -> str:
    out, table = StringIO(), standards_table(verdicts)
    assert table is not None
    Console(file=out, width=width).print(table)
    return out.getvalue()


def test_disagreements_are_counted_both_ways() -> None:
    assert tallies([judged(), judged(), judged(Status.FAIL)]) == [
        PublishedRuleCounts(
            "lenient", passed=3, failed=0, not_applicable=0, passed_rejected=1, failed_passed=0
        ),
        PublishedRuleCounts(
            "strict", passed=0, failed=3, not_applicable=0, passed_rejected=0, failed_passed=2
        ),
        PublishedRuleCounts(
            "silent", passed=0, failed=0, not_applicable=3, passed_rejected=0, failed_passed=0
        ),
    ]


def test_the_table_has_ours_first_then_every_rule() -> None:
    lines = [
        line
        for line in shown(judged(), judged(), judged(Status.FAIL), row(Status.SKIP)).splitlines()
        if line.startswith("│")
    ]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert cells == [
        ["ours", "2", "1", "-", "-", "-"],
        ["lenient", "3", "0", "0", "1", "0"],
        ["strict", "0", "3", "0", "0", "2"],
        ["silent", "0", "0", "3", "0", "0"],
    ]


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(judged(), width=width).splitlines())) <= width


def test_the_most_frequent_benchmark_is_named_and_others_are_counted() -> None:
    text = shown(judged(), judged(), judged(benchmark="onnxruntime: it does not take bf16"))
    assert "benchmark: emulated: plain; and 1 more, named in the record" in " ".join(text.split())


def test_without_a_compared_output_there_is_no_table() -> None:
    assert standards_table([row(), row(Status.SKIP)]) is None
    assert tallies([row()]) == []


def test_one_output_is_reported_in_full() -> None:
    out = StringIO()
    Console(file=out, width=100).print(opinions_table(judged()))
    text = out.getvalue()
    for reported in (
        "of o",
        "largest",
        "2.5",
        "1.25",
        "n/a",
        "no limit for fp32",
        "emulated: plain",
    ):
        assert reported in text


def test_the_decision_reports_the_counts() -> None:
    decision = decide(
        [judged(), judged(Status.FAIL)], Expected("port", ("fp32",), ("o",), ("forward",))
    )
    (reported,) = summary(Ruling.REJECT, [decision])["implementations"]
    assert reported["published"][0] == {
        "rule": "lenient",
        "passed": 2,
        "failed": 0,
        "not_applicable": 0,
        "passed_rejected": 1,
        "failed_passed": 0,
    }
    assert decision.ruling is Ruling.REJECT
