"""Implementations by operation and format at a glance: grade, worst error / tolerance, failures."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from kdaverify.report.html.rows import Rows

AXIS = ("fp64", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Cell:
    """One implementation, operation and format.

    Args:
        cases, judged, failed, skipped: cases tested and judged; outputs judged, failed and skipped.
        worst: the largest error / tolerance; None where nothing was compared.
        grade: the worst; "" where nothing was graded.
    """

    cases: int
    judged: int
    failed: int
    skipped: int
    worst: float | None
    grade: str


@dataclass(frozen=True)
class GlanceRow:
    """`spans` is how many lines the implementation has, in the first of them; 0 in the others."""

    implementation: str
    spans: int
    op: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Glance:
    dtypes: tuple[str, ...]
    lines: tuple[GlanceRow, ...]


def glance(rows: Rows) -> Glance:
    """One line for every implementation and operation."""
    named = rows.counted.filter(pl.col("dtype").cast(pl.String) != "")
    found = named.group_by("implementation", "op", "dtype").agg(
        pl.col("case_key").filter("judged").n_unique().alias("cases"),
        pl.col("judged").sum(),
        pl.col("rejects").sum().alias("failed"),
        pl.col("judged").not_().sum().alias("skipped"),
        pl.col("ratio").max().alias("worst"),
        pl.when("rejects")
        .then(pl.lit("F"))
        .otherwise(pl.col("grade").cast(pl.String))
        .max()
        .fill_null("")
        .alias("grade"),
    )
    cells = {
        (row.pop("implementation"), row.pop("op"), row.pop("dtype")): Cell(**row)
        for row in found.to_dicts()
    }
    seen = {dtype for _, _, dtype in cells}
    dtypes = (*(dtype for dtype in AXIS if dtype in seen), *sorted(seen.difference(AXIS)))
    ops = {name: _ops({op for own, op, _ in cells if own == name}) for name in rows.implementations}
    pairs = [(name, len(own) if op == own[0] else 0, op) for name, own in ops.items() for op in own]
    return Glance(
        dtypes,
        tuple(
            GlanceRow(*pair, tuple(cells.get((pair[0], pair[2], dtype)) for dtype in dtypes))
            for pair in pairs
        ),
    )


def _ops(ops: set[str]) -> list[str]:
    return sorted(ops, key=lambda op: (op != "kda", op))
