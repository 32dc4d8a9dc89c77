"""With what and where each implementation ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.report.html.rows import Rows

MOST_KERNELS: Final = 6


@dataclass(frozen=True)
class Environment:
    """Of one implementation.

    Args:
        ran: mode and device, such as "interpreted on cpu".
        versions: of every package; several where rows differ.
        kernels: that ran, the most frequent first, and the outputs each gave.
        contracts: by format.
        oracles: how exact values were obtained.
        seconds: spent on its checks.
    """

    implementation: str
    ran: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: tuple[tuple[str, int], ...]
    hidden_kernels: int
    contracts: tuple[str, ...]
    seeds: tuple[int, ...]
    oracles: tuple[str, ...]
    seconds: float


def environments(rows: Rows) -> list[Environment]:
    """Of every implementation."""
    reported = rows.full.group_by("implementation", "versions").len().collect(engine="streaming")
    spent = dict(
        rows.full.group_by("implementation")
        .agg(pl.col("duration_s").sum())
        .collect(engine="streaming")
        .iter_rows()
    )
    return [
        _environment(
            rows.counted.filter(pl.col("implementation") == name),
            name,
            reported.filter(pl.col("implementation") == name),
            spent[name],
        )
        for name in rows.implementations
    ]


def _environment(
    own: pl.DataFrame, name: str, reported: pl.DataFrame, seconds: float
) -> Environment:
    versions: dict[str, set[str]] = {}
    kernels: dict[str, int] = {}
    for _, row, times in reported.iter_rows():
        for package, version in json.loads(row or "{}").items():
            if package == "kernel":
                kernels[version] = kernels.get(version, 0) + times
            else:
                versions.setdefault(package, set()).add(version)
    ranked = sorted(kernels.items(), key=lambda item: (-item[1], item[0]))
    ran = own.filter("judged").select(
        pl.format("{} on {}", pl.col("mode").cast(pl.String), pl.col("device").cast(pl.String))
        .unique()
        .sort()
    )
    return Environment(
        implementation=name,
        ran=tuple(ran.to_series().drop_nulls()),
        versions={package: ", ".join(sorted(found)) for package, found in sorted(versions.items())},
        kernels=tuple(ranked[:MOST_KERNELS]),
        hidden_kernels=max(0, len(ranked) - MOST_KERNELS),
        contracts=_distinct(own, "contract"),
        seeds=tuple(sorted(own["seed"].unique())),
        oracles=tuple(sorted({oracle.partition(",")[0] for oracle in _distinct(own, "oracle")})),
        seconds=seconds,
    )


def _distinct(own: pl.DataFrame, column: str) -> tuple[str, ...]:
    return tuple(sorted(text for text in own[column].cast(pl.String).unique() if text))
