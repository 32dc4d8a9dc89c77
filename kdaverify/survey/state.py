"""What is known of implementations, from their sealed records alone: decision, formats, cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl
from pydantic import BaseModel, ConfigDict

from kdaverify.adapters.registry import without_options
from kdaverify.operator import DEFAULT
from kdaverify.report.html.rows import Rows
from kdaverify.survey.finding import Finding
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.gate import GateCriteria, Gated, decided
from kdaverify.verdicts.record import Table, scan
from kdaverify.verdicts.versions import KERNEL

SCHEMA_VERSION: Final = 1
MOST_REASONS: Final = 3
FORMATS: Final = ("fp64", "fp32", "bf16", "fp16")


class FormatState(BaseModel):
    """One implementation in one number format.

    Args:
        dtype: the format.
        cases: judged.
        failing: outputs that are wrong.
        worst: largest error as a multiple of its tolerance; None where nothing was compared.
        worst_regime: inputs of that error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    cases: int
    failing: int
    worst: float | None
    worst_regime: str


class ImplementationState(BaseModel):
    """One implementation as one record shows it.

    Args:
        implementation, op: its name, and the operator that it implements.
        decision: accept, reject, harness error or not enough evidence.
        reasons: the heaviest first.
        profile, seed, harness, finished: of the sessions.
        ran: mode and device, as "interpreted on cpu".
        versions: of every package that took part.
        formats: one by one.
        findings: names of the findings that are about it.
        seconds: of one core, spent on kernel, exact values and tolerances.
        record: name of the file.
        commit: of the kdaverify that judged; "" where it is not stated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    implementation: str
    op: str
    decision: str
    reasons: tuple[str, ...]
    profile: str
    seed: int | None
    harness: str
    finished: str
    ran: str
    versions: dict[str, str]
    formats: tuple[FormatState, ...]
    findings: tuple[str, ...]
    seconds: float
    record: str
    commit: str = ""

    @property
    def is_accepted(self) -> bool:
        return self.decision == Ruling.ACCEPT.value

    @property
    def is_rejected(self) -> bool:
        return self.decision == Ruling.REJECT.value

    @property
    def cases(self) -> int:
        return sum(one.cases for one in self.formats)

    @property
    def worst(self) -> FormatState | None:
        """The format with the largest error beside its tolerance."""
        known = [one for one in self.formats if one.worst is not None]
        return max(known, key=lambda one: one.worst or 0.0, default=None)

    @property
    def packages(self) -> str:
        """The packages under test and their versions, in a line."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


class KernelState(BaseModel):
    """The state of the kernels: what `reports/state/state.json` holds.

    Args:
        schema_version: of this form.
        implementations: by operator, name, versions and device.
        not_run: implementations that have no record, and why.
        commit: of the kdaverify that judged where a row states none; "" where it is not stated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    implementations: tuple[ImplementationState, ...]
    not_run: dict[str, str]
    commit: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Those that any implementation has, KDA first."""
        found = sorted({one.op for one in self.implementations})
        return tuple(sorted(found, key=lambda op: op != DEFAULT))

    def of(self, op: str) -> tuple[ImplementationState, ...]:
        return tuple(one for one in self.implementations if one.op == op)

    @property
    def undecided(self) -> int:
        """How many were judged, and neither accepted nor rejected."""
        return sum(not one.is_accepted and not one.is_rejected for one in self.implementations)

    def unexplained(self) -> tuple[str, ...]:
        """Rejected implementations that no finding is about."""
        rejected = (one for one in self.implementations if one.is_rejected)
        return tuple(one.implementation for one in rejected if not one.findings)

    def releases(self) -> dict[str, tuple[ImplementationState, ...]]:
        """Implementations judged in more than one release on the same kind of device, by name."""
        by_name: dict[tuple[str, str], list[ImplementationState]] = {}
        for one in self.implementations:
            by_name.setdefault((one.implementation, one.ran), []).append(one)
        return {name: tuple(found) for (name, _), found in by_name.items() if len(found) > 1}


def schema() -> str:
    """The JSON schema of `reports/state/state.json`."""
    return json.dumps(KernelState.model_json_schema(), indent=1) + "\n"


def state_of(
    records: Sequence[Path], findings: Iterable[Finding], not_run: dict[str, str], commit: str = ""
) -> KernelState:
    """The state that records show, each decided by itself.

    Args:
        records: sealed records, of this machine and of others.
        findings: all there are.
        not_run: why implementations without a record were not run.
        commit: of the kdaverify that judged.
    Raises:
        RecordError: a record is absent, damaged, or none.
    """
    known = tuple(findings)
    found = [state for path in sorted(records) for state in _states_in(path, known)]
    order = sorted(found, key=_place)
    names = {one.implementation for one in found}
    missing = {name: why for name, why in not_run.items() if name not in names}
    return KernelState(implementations=tuple(order), not_run=missing, commit=commit)


def with_earlier(
    state: KernelState, earlier: KernelState, findings: Iterable[Finding]
) -> KernelState:
    """A state and the rows of an earlier one, where nothing was judged in the same place since.

    Args:
        findings: all there are; those of earlier rows are looked up again.
    """
    known = tuple(findings)
    since = {(one.implementation, one.ran) for one in state.implementations}
    left = [
        one.model_copy(
            update={"findings": _about(one.implementation, known) if one.is_rejected else ()}
        )
        for one in earlier.implementations
        if (one.implementation, one.ran) not in since
    ]
    rows = sorted((*state.implementations, *left), key=_place)
    names = {one.implementation for one in rows}
    missing = {name: why for name, why in state.not_run.items() if name not in names}
    return state.model_copy(update={"implementations": tuple(rows), "not_run": missing})


def _place(one: ImplementationState) -> tuple[str, ...]:
    return (one.op, one.implementation, one.packages, one.ran, one.record)


def _about(name: str, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Names of the findings on an implementation, whatever its options."""
    return tuple(one.name for one in findings if without_options(name) in one.implementations)


def _states_in(path: Path, findings: Sequence[Finding]) -> list[ImplementationState]:
    table = scan(path)
    rows = Rows(table.rows)
    criteria = GateCriteria(datetime.now(UTC).date())
    return [_state(one, rows, table, path, findings) for one in decided([table], criteria)]


def _state(
    gated: Gated, rows: Rows, table: Table, path: Path, findings: Sequence[Finding]
) -> ImplementationState:
    name, own = gated.implementation, rows.of(gated.implementation)
    account = gated.accounts[-1] if gated.accounts else None
    ops = [one.op for account in gated.accounts for one in account.expected]
    seconds = table.rows.filter(pl.col("implementation") == name).select(pl.col("duration_s").sum())
    return ImplementationState(
        implementation=name,
        op=_ensemble(ops[0] if ops else _judged(rows, name), rows, name),
        decision=gated.ruling.value,
        reasons=gated.reasons[:MOST_REASONS],
        profile="" if account is None else account.profile,
        seed=None if account is None else account.seed,
        harness="" if account is None else account.harness,
        finished="" if account is None else account.finished,
        ran=_ran(own),
        versions=_versions(table, name),
        formats=_formats(own),
        findings=_about(name, findings) if gated.ruling is Ruling.REJECT else (),
        seconds=round(seconds.collect().item() or 0.0, 1),
        record=path.name,
        commit=_commit(path),
    )


def commit_file(record: Path) -> Path:
    """Beside a record: the commit of the kdaverify that wrote it, in one line."""
    return record.with_suffix(".commit")


def _commit(record: Path) -> str:
    path = commit_file(record)
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _judged(rows: Rows, name: str) -> str:
    """The operator that most verdicts are of: a session that was ended states none, and those of
    attention stood below KDA.
    """
    found = rows.full.filter(pl.col("implementation") == name).select(
        pl.col("op").cast(pl.String).drop_nulls().mode().sort().first()
    )
    return found.collect().item() or DEFAULT


def _ensemble(op: str, rows: Rows, name: str) -> str:
    """The operator, and for the delta rule the kind of gates, by its problems."""
    if op != DEFAULT:
        return op
    problems = rows.full.filter(pl.col("implementation") == name).select(
        pl.col("problem").str.extract(r'"gates":"([^"]*)"').drop_nulls().mode().first()
    )
    kinds = {"head": "gated_delta", "none": "delta"}
    return kinds.get(problems.collect().item() or "", op)


def _ran(own: pl.DataFrame) -> str:
    judged = own.filter("judged").select(
        pl.format("{} on {}", pl.col("mode").cast(pl.String), pl.col("device").cast(pl.String))
    )
    found = judged.to_series().drop_nulls().unique().sort()
    return ", ".join(found) or "did not run"


def _versions(table: Table, name: str) -> dict[str, str]:
    rows = table.rows.filter(pl.col("implementation") == name).select("versions").unique()
    found: dict[str, set[str]] = {}
    for (text,) in rows.collect().iter_rows():
        for package, version in json.loads(text or "{}").items():
            if package != KERNEL:
                found.setdefault(package, set()).add(version)
    return {package: ", ".join(sorted(each)) for package, each in sorted(found.items())}


def _formats(own: pl.DataFrame) -> tuple[FormatState, ...]:
    """One entry for every format, by the largest finite error beside its tolerance."""
    text = own.with_columns(pl.col("dtype", "regime").cast(pl.String)).filter(
        pl.col("judged") & (pl.col("dtype") != "")
    )
    finite = pl.when(pl.col("ratio").is_finite()).then(pl.col("ratio"))
    grouped = text.group_by("dtype").agg(
        pl.col("case_key").n_unique().alias("cases"),
        pl.col("rejects").sum().alias("failing"),
        finite.max().alias("worst"),
        pl.col("regime")
        .sort_by(finite.fill_null(-1.0), "regime", descending=[True, False])
        .first()
        .alias("worst_regime"),
    )
    order = {dtype: place for place, dtype in enumerate(FORMATS)}
    states = [FormatState(**row) for row in grouped.to_dicts()]
    return tuple(sorted(states, key=lambda one: order.get(one.dtype, len(order))))
