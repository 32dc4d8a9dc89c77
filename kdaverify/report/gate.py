"""What the gate decided: for people, for programs, and for a CI that reads JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from kdaverify.checks.status import Status
from kdaverify.report.plain import plain
from kdaverify.report.summary import judged_code
from kdaverify.report.terminal import COLOURS, shortened
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.gate import Gated

if TYPE_CHECKING:
    import polars as pl

MOST_REASONS: Final = 12
MOST_REPORTED: Final = 5
GROUP: Final = ("property", "op", "dtype", "regime")
"""What a test of the JUnit file is about."""


def show(console: Console, ruling: Ruling, found: Sequence[Gated]) -> None:
    """The reasons of every implementation in the order of their weight, then the decision."""
    for one in found:
        head = Text(f"{plain(one.implementation)}: {one.ruling.upper()}", style=COLOURS[one.ruling])
        head.append(f"  ({_counts(one)}; rules: {plain(one.rules)})", style="not bold")
        console.print(head)
        for reason in shortened(one.reasons, MOST_REASONS):
            console.print(Padding(Text(f"- {plain(reason)}"), (0, 0, 0, 2), expand=False))
        for identity in one.judged:
            console.print(
                Padding(Text(f"code: {plain(str(identity))}"), (0, 0, 0, 2), expand=False)
            )
    if not found:
        console.print("the records hold no verdict, and no session that judged anything")
    console.print(Text(f"decision: {ruling.upper()} (exit code {ruling.exit_code})", style="bold"))


def _counts(one: Gated) -> str:
    failing = sum(times for kind, times in one.tally.kinds.items() if kind.rejects())
    waived = f", {len(one.waived.rows)} waived" if one.waived.rows else ""
    return (
        f"{one.tally.judged} cases judged, {one.tally.cases.get(Status.SKIP, 0)} skipped, {failing}"
        f" failing verdicts{waived}"
    )


def summary(ruling: Ruling, found: Sequence[Gated]) -> dict[str, Any]:
    """The object that `gate --json` writes: that of `verify --json`, as far as records hold it."""
    return {
        "decision": ruling.value,
        "exit_code": ruling.exit_code,
        "implementations": [
            {
                "name": one.implementation,
                "decision": one.ruling.value,
                "reasons": list(one.reasons),
                "rules": one.rules,
                "cases": one.tally.judged,
                "skipped": one.tally.cases.get(Status.SKIP, 0),
                "passes": one.tally.count(Status.PASS),
                "waived": len(one.waived.rows),
                "judged": [judged_code(identity) for identity in one.judged],
            }
            for one in found
        ],
    }


def junit(ruling: Ruling, found: Sequence[Gated]) -> bytes:
    """JUnit XML: a suite an implementation, a test a property, and one for the decision.

    It is made of the record alone: the same whatever the number of workers that filled it.
    """
    root = ET.Element("testsuites", name="kdaverify gate")
    suites = [_suite(one) for one in found]
    if not found:
        empty = ET.Element("testsuite", name="kdaverify")
        _decision(empty, "kdaverify", ruling, ("the records hold no verdict",))
        suites.append(empty)
    root.extend(suites)
    for suite in (*suites, root):
        tests = list(suite.iter("testcase"))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(sum(test.find(tag) is not None for test in tests)))
        suite.set("tests", str(len(tests)))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _suite(one: Gated) -> ET.Element:
    suite = ET.Element("testsuite", name=plain(one.implementation))
    _decision(suite, one.implementation, one.ruling, one.reasons)
    for row in _groups(one.rows).iter_rows(named=True):
        name = "-".join(filter(None, (row[axis] for axis in GROUP[1:]))) or "all"
        about = {
            "classname": plain(f"{one.implementation}.{row['property']}"),
            "name": plain(name),
            "time": f"{row['seconds']:.3f}",
        }
        test = ET.SubElement(suite, "testcase", about)
        if row["rejected"]:
            reported = ET.SubElement(
                test,
                "failure",
                message=plain(
                    f"{row['rejected']} of {row['verdicts']} verdicts: {', '.join(row['statuses'])}"
                ),
            )
            reported.text = "\n".join(
                plain(line)
                for pair in zip(row["messages"], row["replays"], strict=True)
                for line in pair
            )
        elif not row["passed"]:
            ET.SubElement(
                test,
                "skipped",
                message=plain(row["messages"][0] if row["messages"] else "nothing was judged"),
            )
    return suite


def _decision(suite: ET.Element, name: str, ruling: Ruling, reasons: Sequence[str]) -> None:
    test = ET.SubElement(
        suite, "testcase", {"classname": plain(name), "name": "decision", "time": "0"}
    )
    if ruling is not Ruling.ACCEPT:
        tag = "failure" if ruling is Ruling.REJECT else "error"
        reported = ET.SubElement(test, tag, message=plain(f"{ruling.value}: {reasons[0]}"))
        reported.text = "\n".join(plain(reason) for reason in reasons)


def _groups(rows: pl.DataFrame) -> pl.DataFrame:
    """One row for every test: how many verdicts, passed and rejected, and first messages."""
    pl = polars("JUnit")
    rejects = pl.col("status").is_in([status.value for status in Status if status.rejects])
    reported = pl.col("status") != Status.PASS
    headline = pl.col("message").str.splitn("\n", 2).struct.field("field_0")
    counts = rows.group_by(GROUP).agg(
        pl.len().alias("verdicts"),
        (pl.col("status") == Status.PASS).sum().alias("passed"),
        rejects.sum().alias("rejected"),
        pl.col("status").filter(rejects).unique().sort().alias("statuses"),
        pl.col("duration_s").sum().alias("seconds"),
    )
    worst = rows.filter(reported).sort(rejects.not_(), "case", "detail", "output", "message")
    words = worst.group_by(GROUP, maintain_order=True).agg(
        headline.head(MOST_REPORTED).alias("messages"),
        pl.col("replay").head(MOST_REPORTED).alias("replays"),
    )
    joined = counts.join(words, on=GROUP, how="left").sort(GROUP)
    return joined.with_columns(
        pl.col("messages", "replays").fill_null(pl.lit([], dtype=pl.List(pl.String)))
    )
