"""What other published standards would have said, in counts beside ours."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.checks.published.registry import RULES
from kdaverify.report.html.rows import REJECTS, Rows
from kdaverify.report.published import PublishedRuleCounts, tallied

# All of an opinion but what it says: without figures, few different sets of opinions are left.
FIGURES: Final = r'"(?:limit|statistic|value)":(?:"(?:[^"\\]|\\.)*"|[^,}"]*),?'


@dataclass(frozen=True)
class Standards:
    """Of one implementation.

    Args:
        tested, rejected: outputs that published rules were applied to, and those we reject.
        benchmark: whose errors the rules compared with, mostly.
        tallies: one for every rule.
    """

    implementation: str
    tested: int
    rejected: int
    benchmark: str
    tallies: tuple[PublishedRuleCounts, ...]

    def of(self, rule: str) -> PublishedRuleCounts | None:
        """The counts of one rule; None where it was not applied."""
        return next((tally for tally in self.tallies if tally.rule == rule), None)


def standards(rows: Rows) -> list[Standards]:
    """Of every implementation that published rules were applied to."""
    tested = rows.full.filter(pl.col("published") != "{}").with_columns(
        pl.col("status").is_in(REJECTS).alias("rejects")
    )
    figures = (
        pl.len().alias("tested"),
        pl.col("rejects").sum().alias("rejected"),
        pl.col("benchmark").mode().sort().first(),
    )
    totals = {
        row["implementation"]: row
        for row in (
            tested.group_by("implementation").agg(figures).collect(engine="streaming").to_dicts()
        )
    }
    said = (
        pl.col("published")
        .str.replace_all(FIGURES, "")
        .str.replace_all(",}", "}", literal=True)
        .alias("said")
    )
    sets = (
        tested.select("implementation", "rejects", said)
        .group_by("implementation", "rejects", "said")
        .len()
    )
    counts: dict[str, Counter[tuple[str, str, bool]]] = {name: Counter() for name in totals}
    for who, rejects, opinions, times in sets.collect(engine="streaming").iter_rows():
        found: dict[str, Any] = json.loads(opinions)
        counts[who].update(
            {(rule, opinion["says"], rejects): times for rule, opinion in found.items()}
        )
    return [
        Standards(**totals[name], tallies=_tallies(counts[name]))
        for name in rows.implementations
        if name in totals
    ]


def _tallies(counts: Counter[tuple[str, str, bool]]) -> tuple[PublishedRuleCounts, ...]:
    seen = {rule for rule, _, _ in counts}
    return tuple(
        tallied(
            counts, (*(rule for rule in RULES if rule in seen), *sorted(seen.difference(RULES)))
        )
    )
