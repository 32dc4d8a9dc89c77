"""Kinds of failure, each by its smallest case, and the worst cases one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.report.html.rows import Rows

MOST_KINDS: Final = 40
MOST_WORST: Final = 150
NEAREST: Final = 10
"""Passes shown for every implementation: those nearest to their limit."""

KIND: Final = ("implementation", "property", "output", "status", "stage", "diagnosis")


@dataclass(frozen=True)
class Kind:
    """Failures that agree in all but the problem.

    Args:
        times: how many.
        dtypes, regimes: in which formats and under which gates.
        row: the smallest of them, in full.
    """

    times: int
    dtypes: tuple[str, ...]
    regimes: tuple[str, ...]
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Kinds:
    """The most frequent kinds, how many more there are, and the failures in them all."""

    shown: tuple[Kind, ...]
    hidden: int
    failures: int


def kinds(rows: Rows) -> Kinds:
    """Kinds of failure, the most frequent first."""
    wrong = rows.counted.filter("rejects")
    grouped = (
        wrong.with_columns(pl.col("T").fill_null(0))
        .group_by(KIND)
        .agg(pl.len(), pl.col("dtype", "regime").cast(pl.String).unique().sort(), pl.col("row").sort_by("T", "row").first())
        .sort("len", "row", descending=[True, False])
    )
    top = grouped.head(MOST_KINDS)
    examples = rows.shown(top["row"].to_list())
    figures = zip(top["len"], top["dtype"].to_list(), top["regime"].to_list(), examples, strict=True)
    shown = tuple(Kind(times, _named(dtypes), _named(regimes), row) for times, dtypes, regimes, row in figures)
    return Kinds(shown, grouped.height - top.height, wrong.height)


def worst(rows: Rows) -> list[Mapping[str, Any]]:
    """The worst failures of every implementation, then the passes nearest to their limit."""
    own = pl.col("implementation")
    share = max(1, MOST_WORST // max(1, len(rows.implementations)))
    by_ratio = rows.counted.filter("judged").sort("ratio", "row", descending=[True, False], nulls_last=True)
    wrong = by_ratio.filter("rejects").filter(pl.int_range(pl.len()).over(own) < share)
    near = by_ratio.filter(pl.col("rejects").not_() & pl.col("ratio").is_not_null()).filter(pl.int_range(pl.len()).over(own) < NEAREST)
    return [*rows.shown([*wrong["row"], *near["row"]])]


def _named(names: list[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name)
