"""A night on the terminal: decision, changes, flaky failures, figures over the nights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.report.terminal import COLOURS

if TYPE_CHECKING:
    import polars as pl

    from kdaverify.nightly.night import Night

SHOWN_NIGHTS: Final = 7
MOST_SHOWN: Final = 8


def show_night(console: Console, night: Night, medians: pl.DataFrame) -> None:
    """Writes one implementation's night.

    Args:
        medians: of `trend.medians`, tonight among them.
    """
    _show_medians(console, night, medians)
    for change in night.changes:
        if change.worse or change.better:
            console.print(Text(str(change), style="red" if change.worse else "green"))
    for row in night.failing.head(MOST_SHOWN).iter_rows(named=True):
        reported = row["stage"] or row["diagnosis"] or ""
        about = " ".join(row[name] for name in ("status", "property", "output", "dtype"))
        console.print(Text(f"{about} {reported}".rstrip(), style="bold red"))
        console.print(f"  {row['replay']}", soft_wrap=True, highlight=False, markup=False)
    for row in night.flaky.head(MOST_SHOWN).iter_rows(named=True):
        reported = (
            f"flaky: failed on {row['failed']} of {row['tested']} nights, last on {row['last']}:"
            f" {row['property']} {row['output']}"
        )
        console.print(Text(reported, style="bold yellow"))
        console.print(f"  {row['replay']}", soft_wrap=True, highlight=False, markup=False)
    if night.nights:
        before = f"beside {night.nights} earlier nights"
    else:
        before = "the first night of this history: nothing to compare with"
    console.print(
        Text(
            f"{night.implementation}: {night.ruling.upper()}, {before}", style=COLOURS[night.ruling]
        )
    )
    for reason in night.reasons[:MOST_SHOWN]:
        console.print(Text(f"  {reason}"))


def _show_medians(console: Console, night: Night, medians: pl.DataFrame) -> None:
    rows = [
        row
        for row in medians.sort(["dtype", "output"]).iter_rows(named=True)
        if row["implementation"] == night.implementation
    ]
    dates = sorted({date for row in rows for date in row["date"]})[-SHOWN_NIGHTS:]
    table = Table(
        "output",
        "dtype",
        title=f"{night.implementation}: median error / tolerance, fixed cases",
        title_justify="left",
    )
    for date in dates:
        table.add_column(date, justify="right")
    for row in rows:
        by_date = dict(zip(row["date"], row["ratio"], strict=True))
        table.add_row(
            Text(row["output"]),
            row["dtype"],
            *(f"{by_date[date]:.3g}" if date in by_date else "-" for date in dates),
        )
    console.print(table)


def night_summary(night: Night) -> dict[str, Any]:
    """The same for machines."""
    return {
        "name": night.implementation,
        "decision": night.ruling.value,
        "reasons": list(night.reasons),
        "earlier_nights": night.nights,
        "changes": [
            {"case": str(change), "ratio": change.ratio}
            for change in night.changes
            if change.worse or change.better
        ],
        "failing": (
            night.failing.select(
                "property", "output", "dtype", "case", "status", "stage", "replay"
            ).to_dicts()
        ),
        "flaky": (
            night.flaky.select(
                "property", "output", "case", "tested", "failed", "last", "replay"
            ).to_dicts()
        ),
    }
