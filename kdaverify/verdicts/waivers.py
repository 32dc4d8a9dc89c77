"""Waivers: failures that are known, capped, owned, and forgiven for at most 90 days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.decision import plural
from kdaverify.verdicts.toml_file import FileError, read_toml
from kdaverify.verdicts.verdict import NAME_FIELDS, identity

if TYPE_CHECKING:
    import polars as pl

LONGEST: Final = timedelta(days=90)
"""A waiver caps a known failure, and does not hide it: it is renewed each quarter, or expires."""
COMPARED: Final = (Status.FAIL,)
"""Statuses with a statistic of their own; the others are named by a waiver as they are."""
STATUSES: Final = frozenset(status.value for status in Status)
WAIVABLE: Final = STATUSES - {
    Status.PASS,
    Status.SKIP,
    Status.UNANSWERED,
    Status.ORACLE_UNCERTIFIED,
    *COMPARED,
}
"""Statuses that a waiver may name."""

Words = Annotated[str, Field(min_length=1)]


class Waiver(BaseModel):
    """One known failure.

    Args:
        id: glob over PROPERTY/DTYPE/REGIME/CASE/OUTPUT[/DETAIL].
        impl: name of the implementation.
        statistic: the statistic that is over tolerance (rms, max, ...), or of what is no comparison
            the status (NONFINITE, ERROR, ...).
        cap: of a statistic the largest ratio to its tolerance, of a status the most verdicts.
        reason, owner: why, and who mends it.
        expires: the last day it holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Words
    impl: Words
    statistic: Words
    cap: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    reason: Words
    owner: Words
    expires: date

    def __str__(self) -> str:
        return f"waiver of {self.statistic} of {self.id} ({self.owner})"


class WaiverFile(BaseModel):
    """A file of waivers: one or more tables `[[waiver]]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    waiver: Annotated[tuple[Waiver, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Held:
    """A waiver held against the failures of its implementation.

    Args:
        verdicts: how many it is of.
        fault: why it rejects: expired, exceeded, or of nothing that fails; "" where it holds.
    """

    waiver: Waiver
    verdicts: int
    fault: str

    def __str__(self) -> str:
        if self.fault:
            return f"{self.waiver} {self.fault}"
        until, covered = self.waiver.expires, f"{self.verdicts} {plural('verdict', self.verdicts)}"
        return f"{self.waiver} until {until} covers {covered}: {self.waiver.reason}"


@dataclass(frozen=True)
class Waived:
    """What waivers do to the failures of an implementation.

    Args:
        rows: numbers of the rows that are forgiven.
        held: its waivers, and those of implementations that are in no record.
    """

    rows: frozenset[int] = frozenset()
    held: tuple[Held, ...] = ()

    def beside(self, others: tuple[Held, ...]) -> Waived:
        """The same with waivers that match nothing here, reported first."""
        return Waived(self.rows, (*others, *self.held))

    @property
    def broken(self) -> list[str]:
        """What is said of those that reject."""
        return [str(one) for one in self.held if one.fault]

    @property
    def reported(self) -> list[str]:
        """What is forgiven, how long, why."""
        return [str(one) for one in self.held if not one.fault]


def read_waivers(path: Path, today: date) -> tuple[Waiver, ...]:
    """The waivers of a file.

    Raises:
        FileError: the file is wrong, a waiver too long, or it forgives no failure of the kernel.
    """
    waivers = read_toml(path, WaiverFile, "waivers").waiver
    for waiver in waivers:
        if waiver.expires > today + LONGEST:
            raise FileError(
                f"waivers: {path}: {waiver} expires on {waiver.expires}: at most {LONGEST.days}"
                f" days ahead, {today + LONGEST}"
            )
        if waiver.statistic in STATUSES - WAIVABLE:
            raise FileError(
                f"waivers: {path}: {waiver}: wanted a statistic such as rms, or the status of a"
                " wrong kernel such as NONFINITE"
            )
    return waivers


def lost(waiver: Waiver) -> Held:
    """A waiver of an implementation that is in no record."""
    return Held(waiver, 0, f"of {waiver.impl}, which is not in the record: take it out of the file")


def apply(rows: pl.DataFrame, waivers: Sequence[Waiver], today: date) -> Waived:
    """Holds the failures of one implementation against its waivers.

    Args:
        rows: its verdicts, with a column `number`.
        waivers: those of the implementation.
    """
    if not waivers:
        return Waived()
    pl = polars("waivers")
    wrong = rows.filter(
        pl.col("status").is_in([status.value for status in Status if status.rejects])
    )
    found = [
        (number, statistic if status in COMPARED else status, ratio, identity(about))
        for number, status, statistic, ratio, *about in wrong.select(
            "number", "status", "statistic", "ratio", *NAME_FIELDS
        ).iter_rows()
    ]
    forgiven, held = set[int](), list[Held]()
    for waiver in waivers:
        matched = [
            (number, ratio)
            for number, what, ratio, name in found
            if what == waiver.statistic and fnmatchcase(name, waiver.id)
        ]
        held.append(
            Held(waiver, len(matched), _fault(waiver, [ratio for _, ratio in matched], today))
        )
        if not held[-1].fault:
            forgiven.update(number for number, _ in matched)
    return Waived(frozenset(forgiven), tuple(held))


def _fault(waiver: Waiver, ratios: list[float | None], today: date) -> str:
    """Why it does not hold; "" where it does."""
    if waiver.expires < today:
        return f"expired on {waiver.expires}: mend what it waives, or renew it with its reason"
    if not ratios:
        return "matches no failure of this run: take it out of the file"
    if waiver.statistic in STATUSES:
        if len(ratios) > waiver.cap:
            return f"is exceeded: {len(ratios)} verdicts, cap {waiver.cap:g}"
        return ""
    worst = max(math.inf if ratio is None or math.isnan(ratio) else ratio for ratio in ratios)
    return "" if worst <= waiver.cap else f"is exceeded: {worst:.3g}x tolerance, cap {waiver.cap:g}"
