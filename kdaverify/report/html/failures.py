"""Kinds of failure, each by one case, what limits the evidence, and the worst cases one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.checks.location import NoStage
from kdaverify.checks.status import Status
from kdaverify.report.html.rows import Rows

MOST_KINDS: Final = 40
MOST_WORST: Final = 150
ALIKE: Final = 3
"""Failures shown that agree in implementation, suite, output and status."""
NEAREST: Final = 10
"""Passes shown for every implementation: those nearest to their limit."""

INCONCLUSIVE: Final = "inconclusive: a zero, negated or shuffled output would pass too"
LIMITS: Final = {
    Status.SKIP.value: "not tested: the kernel does not take it",
    Status.UNANSWERED.value: "no output came back",
    Status.ORACLE_UNCERTIFIED.value: "no reference value could be certified",
}

KIND: Final = ("implementation", "property", "status", "blamed")


@dataclass(frozen=True)
class FailureGroup:
    """Failures that agree in all but the problem.

    Args:
        times: how many.
        outputs, dtypes, regimes: which outputs, in which formats and under which gates.
        blamed: the stage that they name as the first wrong one; "" where they name none.
        row: in full the diagnosed one with the fewest tokens; of all where none was diagnosed.
    """

    times: int
    outputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    regimes: tuple[str, ...]
    blamed: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Kinds:
    """The most frequent kinds, how many more there are, and the failures in them all."""

    shown: tuple[FailureGroup, ...]
    hidden: int
    failures: int


@dataclass(frozen=True)
class EvidenceLimit:
    """Outputs that say nothing for or against an implementation, alike in why.

    Args:
        why: in a word or a few.
        times: how many.
        properties, dtypes: of which suites and formats.
        example: the first line of one message.
    """

    implementation: str
    why: str
    times: int
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    example: str


def evidence_limits(rows: Rows) -> list[EvidenceLimit]:
    """What was skipped, not answered or not certified, and passes that negative controls would get
    too; the most frequent first.
    """
    status = pl.col("status").cast(pl.String)
    vacuous = (status == Status.PASS.value) & pl.col("proves").not_()
    why = (
        pl.when(vacuous)
        .then(pl.lit(INCONCLUSIVE))
        .when(status.is_in([*LIMITS]))
        .then(status.replace(LIMITS))
        .alias("why")
    )
    grouped = (
        rows.counted.with_columns(why)
        .filter(pl.col("why").is_not_null())
        .group_by("implementation", "why")
        .agg(
            pl.len(),
            pl.col("property", "dtype").cast(pl.String).unique().sort(),
            pl.col("row").first(),
        )
        .sort("len", "row", descending=[True, False])
    )
    examples = rows.shown(grouped["row"].to_list())
    return [
        EvidenceLimit(
            str(own["implementation"]),
            own["why"],
            own["len"],
            _named(own["property"]),
            _named(own["dtype"]),
            "" if own["why"] == INCONCLUSIVE else row["message"].partition("\n")[0],
        )
        for own, row in zip(grouped.iter_rows(named=True), examples, strict=True)
    ]


def kinds(rows: Rows) -> Kinds:
    """Kinds of failure, the most frequent first."""
    stage = pl.col("stage").cast(pl.String)
    named = pl.when(stage.is_in([*NoStage])).then(pl.lit("")).otherwise(stage)
    fails = pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value)
    wrong = rows.counted.filter(fails).with_columns(pl.col("T").fill_null(0), blamed=named)
    grouped = (
        wrong.group_by(KIND)
        .agg(
            pl.len(),
            pl.col("output", "dtype", "regime").cast(pl.String).unique().sort(),
            pl.col("row").sort_by(pl.col("diagnosis").cast(pl.String) == "", "T", "row").first(),
        )
        .sort("len", "row", descending=[True, False])
    )
    top = grouped.head(MOST_KINDS)
    examples = rows.shown(top["row"].to_list())
    shown = tuple(
        _kind(figures, row)
        for figures, row in zip(top.iter_rows(named=True), examples, strict=True)
    )
    return Kinds(shown, grouped.height - top.height, wrong.height)


def worst(rows: Rows) -> list[Mapping[str, Any]]:
    """The worst failures of every implementation, then the passes nearest to their limit."""
    own = pl.col("implementation")
    share = max(1, MOST_WORST // max(1, len(rows.implementations)))
    by_ratio = rows.counted.filter("judged").sort(
        "ratio", "row", descending=[True, False], nulls_last=True
    )
    place = pl.int_range(pl.len())
    varied = by_ratio.filter("rejects").filter(
        place.over("implementation", "property", "output", "status") < ALIKE
    )
    wrong = varied.filter(place.over(own) < share)
    near = by_ratio.filter(pl.col("rejects").not_() & pl.col("ratio").is_not_null()).filter(
        place.over(own) < NEAREST
    )
    return [*rows.shown([*wrong["row"], *near["row"]])]


def _kind(figures: dict[str, Any], row: Mapping[str, Any]) -> FailureGroup:
    outputs, dtypes, regimes = (_named(figures[column]) for column in ("output", "dtype", "regime"))
    return FailureGroup(figures["len"], outputs, dtypes, regimes, figures["blamed"], row)


def _named(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name)
