"""The view by stage: results of stages judged alone, and those that failures name first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.checks.location import NoStage
from kdaverify.checks.property_table import named
from kdaverify.report.html.rows import Rows

OF_STAGES: Final = named(lambda found: bool(found.stages))
DIRECTIONS: Final = ("forward", "backward", "fused")


@dataclass(frozen=True)
class Stage:
    """One stage of one implementation.

    Args:
        tensors: what it writes, as judged.
        judged, failed, skipped: outputs.
        worst: the largest ratio.
        blamed: failures of whole calls that name it as the first wrong stage.
    """

    implementation: str
    direction: str
    name: str
    tensors: tuple[str, ...]
    judged: int
    failed: int
    skipped: int
    worst: float | None
    blamed: int


def stages(rows: Rows) -> list[Stage]:
    """By implementation, forward before backward, in the order of the record."""
    own = rows.counted.filter(pl.col("property").is_in(OF_STAGES))
    split = pl.col("output").cast(pl.String).str.splitn(".", 2)
    blamed = _blamed(rows)
    found = (
        own.with_columns(split.struct[0].alias("name"), split.struct[1].alias("tensor"))
        .group_by(
            "implementation", pl.col("property").alias("direction"), "name", maintain_order=True
        )
        .agg(
            pl.col("tensor").drop_nulls().unique(maintain_order=True).alias("tensors"),
            pl.col("judged").sum(),
            pl.col("rejects").sum().alias("failed"),
            pl.col("judged").not_().sum().alias("skipped"),
            pl.col("ratio").max().alias("worst"),
        )
    )
    listed: list[Stage] = []
    for row in found.iter_rows(named=True):
        direction = DIRECTIONS[OF_STAGES.index(row.pop("direction"))]
        tensors = tuple(row.pop("tensors"))
        times = blamed.pop((row["implementation"], row["name"]), 0)
        listed.append(Stage(**row, direction=direction, tensors=tensors, blamed=times))
    # Fused stages are named with their tensor, "intra (R)": no row of theirs.
    listed += [
        Stage(who, DIRECTIONS[2], name, (), 0, 0, 0, None, times)
        for (who, name), times in sorted(blamed.items())
    ]
    order = {name: place for place, name in enumerate(rows.implementations)}
    return sorted(
        listed, key=lambda stage: (order[stage.implementation], DIRECTIONS.index(stage.direction))
    )


def _blamed(rows: Rows) -> dict[tuple[str, str], int]:
    named = rows.counted.filter(
        pl.col("rejects") & ~pl.col("stage").cast(pl.String).is_in(["", *NoStage])
    )
    return {
        (who, stage): times
        for who, stage, times in named.group_by("implementation", "stage").len().iter_rows()
    }
