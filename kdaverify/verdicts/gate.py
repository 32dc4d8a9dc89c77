"""The gate: a decision on records alone, later, under rules, waivers and a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdaverify.checks.status import Status
from kdaverify.operator import DEFAULT
from kdaverify.verdicts.code_identity import CodeIdentity, changed, mixed_identities
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.decision import WEIGHT, Ruling, conclude
from kdaverify.verdicts.demands import exceeded, lacking
from kdaverify.verdicts.ledger import Against, Ledger
from kdaverify.verdicts.record import Table, scan
from kdaverify.verdicts.rules import BY_PROFILE, SHIPPED, rules_named
from kdaverify.verdicts.seal import Account, Covered, Expected
from kdaverify.verdicts.tally import VerdictCounts, tally_of
from kdaverify.verdicts.versions import mixed
from kdaverify.verdicts.waivers import Held, Waived, Waiver, apply, lost

if TYPE_CHECKING:
    import polars as pl

COLUMNS: Final = (
    "implementation", "property", "op", "dtype", "regime", "case", "detail", "output", "status",
    "statistic", "ratio", "vacuous", "peers", "recheck", "contract", "device", "mode", "message",
    "replay", "duration_s",
)  # fmt: skip
"""What a decision reads of a record."""
WORDY: Final = ("message", "replay")
"""Of these, what is kept of verdicts that did not pass."""
UNDECLARED: Final = "no session says what it declares: judge it with `kdaverify verify --record`"


@dataclass(frozen=True)
class Gated:
    """The decision on one implementation.

    Args:
        ruling, reasons: heaviest first; then what is only reported.
        limits: of the reasons, those that are no error of the kernel.
        rules: by which.
        tally: of the verdicts that count.
        rows: the verdicts, those that a waiver forgives included.
        waived: what its waivers forgive, by the place in `rows`.
        judged: the code that the sessions judged, each version once; () if none recorded it.
        accounts: of the sessions that judged it.
    """

    implementation: str
    ruling: Ruling
    reasons: tuple[str, ...]
    rules: str
    tally: VerdictCounts
    rows: pl.DataFrame = field(repr=False)
    waived: Waived = field(default_factory=Waived)
    judged: tuple[CodeIdentity, ...] = ()
    accounts: tuple[Account, ...] = field(default=(), repr=False)
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateCriteria:
    """What records are held against.

    Args:
        today: the day by which waivers hold.
        rules: a shipped name or a file; None for those of the profile that ran.
        waivers: of all implementations.
        ledger: accepted precision, if it is compared with.
    """

    today: date
    rules: str | None = None
    waivers: tuple[Waiver, ...] = ()
    ledger: Ledger | None = None


def gate(paths: Sequence[Path], question: GateCriteria) -> list[Gated]:
    """Decides on every implementation of the records, each read once.

    Raises:
        RecordError: a record is absent, damaged, or none.
        FileError: the rules are wrong.
    """
    return decided([scan(path) for path in dict.fromkeys(paths)], question)


def decided(tables: Sequence[Table], question: GateCriteria) -> list[Gated]:
    """The same of records that have been opened.

    Raises:
        RecordError, FileError: as `gate`.
    """
    pl = polars("the gate")
    accounts = [account for table in tables for account in table.accounts]
    reported = pl.col("status") != Status.PASS
    wordless = [
        pl.when(reported).then(pl.col(name)).otherwise(pl.lit("")).alias(name) for name in WORDY
    ]
    read = [
        table.rows.select(COLUMNS).with_columns(wordless).collect(engine="streaming")
        for table in tables
    ]
    rows = pl.concat(read) if read else pl.DataFrame()
    versions = mixed(pl.concat([table.rows for table in tables]))
    names = sorted(
        {
            *rows["implementation"].unique().to_list(),
            *(one.implementation for account in accounts for one in account.expected),
        }
    )
    others = tuple(lost(waiver) for waiver in question.waivers if waiver.impl not in names)
    found: list[Gated] = []
    for name in names:
        own = rows.filter(pl.col("implementation") == name).with_row_index("number")
        tested = [
            account
            for account in accounts
            if any(one.implementation == name for one in account.expected)
        ]
        found.append(
            _one(
                name,
                own,
                tested,
                question,
                gaps=unfinished(_about(name, tables, read)),
                versions=versions.get(name, ()),
                others=others,
            )
        )
    return found


def _one(
    name: str,
    rows: pl.DataFrame,
    accounts: Sequence[Account],
    question: GateCriteria,
    *,
    gaps: Sequence[str],
    versions: Sequence[str],
    others: tuple[Held, ...],
) -> Gated:
    pl = polars("the gate")
    named = question.rules or _rules_of(accounts)
    rules, expected = rules_named(named), _expected(name, accounts)
    own = [waiver for waiver in question.waivers if waiver.impl == name]
    waived = apply(rows, own, question.today).beside(others)
    counted = tally_of(rows.filter(pl.col("number").is_in([*waived.rows]).not_()))
    held = Against() if question.ledger is None else question.ledger.against(name, rows)
    judged = _judged(name, accounts)
    several = {rules.mixed_versions: _several(name, accounts, judged, versions)}
    beside = {
        Ruling.ERROR: [one for account in accounts for one in account.trouble.get(name, ())],
        Ruling.REJECT: [*waived.broken, *held.worse, *exceeded(rules, rows)],
        Ruling.INSUFFICIENT: [
            *gaps,
            *several.get("refuse", ()),
            *([] if accounts else [UNDECLARED]),
            *lacking(rules, counted, expected, accounts),
            *held.missing,
        ],
    }
    found = conclude(counted, expected, beside)
    reported = (*waived.reported, *several.get("report", ()), *held.reported)
    reasons, limits = (*found.reasons, *reported), (*found.limits, *reported)
    return Gated(
        name, found.ruling, reasons, named, counted, rows, waived, judged, tuple(accounts), limits
    )


def _judged(name: str, accounts: Sequence[Account]) -> tuple[CodeIdentity, ...]:
    """The code that the sessions judged, each version once."""
    found = (account.judged.get(name) for account in accounts)
    return tuple({one.short: one for one in found if one}.values())


def _several(
    name: str,
    accounts: Sequence[Account],
    judged: tuple[CodeIdentity, ...],
    versions: Sequence[str],
) -> list[str]:
    """Of what the records hold several versions."""
    mixed_code = (*mixed_identities(judged), *_partly_identified(name, accounts))
    found = (*versions, *_harnesses(accounts), *mixed_code)
    return [*(f"mixed versions: {one}" for one in found), *changed(judged)]


def _about(name: str, tables: Sequence[Table], read: Sequence[pl.DataFrame]) -> list[Table]:
    """The records whose gaps are gaps of this implementation: a half run of another says nothing
    of it. What names no implementation may have been about any.
    """
    found: list[Table] = []
    for table, rows in zip(tables, read, strict=True):
        named = {
            *rows["implementation"].unique().to_list(),
            *(one.implementation for account in table.accounts for one in account.expected),
        }
        if name in named or not named:
            found.append(table)
    return found


def unfinished(tables: Sequence[Table]) -> list[str]:
    """What shows that not everything that was to be judged is in the records."""
    torn = [table.truncated for table in tables if table.truncated]
    left = sum(table.open_rows for table in tables)
    if left:
        half = [
            (
                f"half-run: {left} verdicts are of runs that did not finish, or of records of"
                " version 1, which have no seal"
            )
        ]
    else:
        half = []
    return [*torn, *half]


def _rules_of(accounts: Sequence[Account]) -> str:
    """The strictest of the rules by the profiles that ran."""
    named = {BY_PROFILE.get(account.profile, "acceptance") for account in accounts} or {
        "acceptance"
    }
    return next(name for name in reversed(SHIPPED) if name in named)


def _expected(name: str, accounts: Sequence[Account]) -> Expected:
    """What all sessions together want shown; of what does not apply, what all of them leave out."""
    tested = [one for account in accounts for one in account.expected if one.implementation == name]
    not_applicable = [{*one.not_applicable} for one in tested]
    common = set[str].intersection(*not_applicable) if not_applicable else set[str]()
    return Expected(
        name,
        tuple(dict.fromkeys(dtype for one in tested for dtype in one.dtypes)),
        tuple(dict.fromkeys(output for one in tested for output in one.outputs)),
        tuple(dict.fromkeys(prop for one in tested for prop in one.properties)),
        {prop: why for one in tested for prop, why in one.not_applicable.items() if prop in common},
        tuple(dict.fromkeys(what for one in tested for what in one.outside)),
        _covered([covered for one in tested for covered in one.covered]),
        next((one.op for one in tested), DEFAULT),
    )


def _covered(found: Sequence[Covered]) -> tuple[Covered, ...]:
    """The session that judged most combinations of each strength; two may have the same."""
    most: dict[int, Covered] = {
        one.strength: one for one in sorted(found, key=lambda one: one.judged)
    }
    return tuple(most[strength] for strength in sorted(most))


def _partly_identified(name: str, accounts: Sequence[Account]) -> list[str]:
    """Said where some sessions recorded the code that they judged and some did not."""
    unknown = sum(name not in account.judged for account in accounts)
    if 0 < unknown < len(accounts):
        return [f"{unknown} of {len(accounts)} sessions did not record which code they judged"]
    return []


def _harnesses(accounts: Sequence[Account]) -> list[str]:
    found = sorted({account.harness for account in accounts})
    return [f"kdaverify in versions {', '.join(found)}"] if len(found) > 1 else []


def heaviest_first(found: Sequence[Gated]) -> list[Gated]:
    return sorted(found, key=lambda one: (WEIGHT.index(one.ruling), one.implementation))
