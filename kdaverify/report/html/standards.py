"""What other published standards would have said, in counts beside ours."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kdaverify.checks.published.says import Says
from kdaverify.report.html.rows import REJECTS, Rows
from kdaverify.report.published import Tally


@dataclass(frozen=True)
class Standards:
    """Of one implementation.

    Args:
        asked, rejected: outputs that others' rules were asked of, and those of them that we reject.
        benchmark: whose errors the rules compared with, mostly.
        tallies: one for every rule.
    """

    implementation: str
    asked: int
    rejected: int
    benchmark: str
    tallies: tuple[Tally, ...]


def standards(rows: Rows) -> list[Standards]:
    """Of every implementation that others' rules were asked of."""
    asked = rows.full.filter(pl.col("published").list.len() > 0).with_columns(pl.col("status").is_in(REJECTS).alias("rejects"))
    totals = asked.group_by("implementation").agg(pl.len(), pl.col("rejects").sum(), pl.col("benchmark").mode().first())
    single = asked.select("implementation", "rejects", "published").explode("published", empty_as_null=False, keep_nulls=False).unnest("published")
    counts = single.group_by("implementation", "rule", "says", "rejects").len().collect(engine="streaming")
    by_rule: dict[tuple[str, str], dict[tuple[str, bool], int]] = {}
    for who, rule, says, rejects, times in counts.sort("rule").iter_rows():
        by_rule.setdefault((who, rule), {})[says, rejects] = times
    figures = {who: told for who, *told in totals.collect(engine="streaming").iter_rows()}
    return [
        Standards(name, *figures[name], tuple(_tally(rule, found) for (who, rule), found in by_rule.items() if who == name))
        for name in rows.implementations
        if name in figures
    ]


def _tally(rule: str, found: dict[tuple[str, bool], int]) -> Tally:
    def count(says: Says, *rejected: bool) -> int:
        return sum(found.get((says.value, ours), 0) for ours in rejected)

    return Tally(
        rule=rule,
        passed=count(Says.PASS, True, False),
        failed=count(Says.FAIL, True, False),
        not_applicable=count(Says.NOT_APPLICABLE, True, False),
        passed_rejected=count(Says.PASS, True),
        failed_passed=count(Says.FAIL, False),
    )
