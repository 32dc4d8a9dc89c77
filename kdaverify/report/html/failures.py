"""Kinds of failure, each by one case, what limits the evidence, and the worst cases one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.checks.location import NoStage
from kdaverify.checks.status import Status
from kdaverify.report.html.rows import Rows
from kdaverify.report.reported_kinds import ReportedKind, left_open, reported_kinds, same

MOST_KINDS: Final = 40
MOST_READ: Final = 100_000
"""Failures that are grouped; the others are counted alone."""
MOST_WORST: Final = 150
ALIKE: Final = 3
"""Failures shown that agree in implementation, suite, output and status."""
NEAREST: Final = 10
"""Passes shown for every implementation: those nearest to their limit."""

INCONCLUSIVE: Final = "inconclusive: a zero, negated or shuffled output would pass too"
UNCONFIRMED: Final = "the declared conventions were not confirmed"
LIMITS: Final = {
    Status.SKIP.value: "not tested: the kernel does not take it",
    Status.UNANSWERED.value: "no output came back",
    Status.ORACLE_UNCERTIFIED.value: "no reference value could be certified",
}


@dataclass(frozen=True)
class FailureGroup:
    """One kind of failure, as the terminal has it.

    Args:
        times: how many.
        outputs, dtypes, regimes: which outputs, in which formats and under which gates.
        blamed: the stage that they name as the first wrong one; "" where they name none.
        row: the one that stands for them, in full.
    """

    times: int
    outputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    regimes: tuple[str, ...]
    blamed: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Kinds:
    """The first kinds, how many more, all failures, and those that are the same as others."""

    shown: tuple[FailureGroup, ...]
    hidden: int
    failures: int
    same: tuple[str, ...] = ()


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
    """What was skipped, unanswered, uncertified or passes negative controls, by frequency."""
    status = pl.col("status").cast(pl.String)
    vacuous = (status == Status.PASS.value) & pl.col("proves").not_()
    why = (
        pl.when(vacuous)
        .then(pl.lit(INCONCLUSIVE))
        # What is wrong under every choice was taken, and is no refusal of the kernel.
        .when((status == Status.SKIP.value) & (pl.col("property") == "conventions"))
        .then(pl.lit(UNCONFIRMED))
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
    """Kinds of failure, those of each implementation in the order of the terminal."""
    fails = pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value)
    wrong = rows.counted.filter(fails)
    verdicts = rows.verdicts(wrong["row"].head(MOST_READ).to_list())
    numbers = {id(verdict): row for row, verdict in verdicts.items()}
    found, said = list[ReportedKind](), list[str]()
    for name in rows.implementations:
        own = [verdict for verdict in verdicts.values() if verdict.implementation == name]
        found += reported_kinds(own)
        about = filter(None, (*same(own), left_open(own)))
        said += [f"{name}: {one}" if len(rows.implementations) > 1 else one for one in about]
    top = found[:MOST_KINDS]
    examples = rows.shown([numbers[id(kind.shown)] for kind in top])
    shown = tuple(_group(kind, row) for kind, row in zip(top, examples, strict=True))
    return Kinds(shown, len(found) - len(top), wrong.height, tuple(said))


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


def _group(kind: ReportedKind, row: Mapping[str, Any]) -> FailureGroup:
    formats, gates = ({getattr(one, name) for one in kind.rows} for name in ("dtype", "regime"))
    outputs = _named([kind.rows[0].output, *kind.beside])
    stage = "" if kind.stage is None or kind.stage in {*NoStage} else kind.stage
    return FailureGroup(
        kind.times, outputs, _named(sorted(formats)), _named(sorted(gates)), stage, row
    )


def _named(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name)
