"""Rows as columns: a typed column for every field of a verdict, nested ones in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import chain, islice
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from kdaverify.checks.status import Status
from kdaverify.verdicts.verdict import SCHEMA, Verdict

if TYPE_CHECKING:
    import polars as pl


class RecordError(ValueError):
    """A record that cannot be read or written; the message names file, line and remedy."""


BATCH: Final = 20_000
"""Rows that are objects at one time."""


def polars(wanted: str) -> Any:
    """The query engine.

    Raises:
        RecordError: it is not installed.
    """
    try:
        import polars as pl
    except ImportError:
        raise RecordError(
            f"record: {wanted} needs polars; pip install 'kdaverify[parquet]', or end the name in"
            " .jsonl"
        ) from None
    return pl


@cache
def schema() -> dict[str, Any]:
    """The type of every column."""
    pl = polars("a table of verdicts")
    plain = {
        str: pl.String,
        int: pl.Int64,
        float: pl.Float64,
        tuple[str, ...]: pl.List(pl.String),
        tuple[float, ...]: pl.List(pl.Float64),
    }
    return {
        name: plain.get(_bare(field.annotation), pl.String)
        for name, field in Verdict.model_fields.items()
    }


@cache
def nested() -> frozenset[str]:
    """Fields that a column holds as JSON."""
    flat = (str, int, float, tuple[str, ...], tuple[float, ...])
    return frozenset(
        name for name, field in Verdict.model_fields.items() if _bare(field.annotation) not in flat
    )


def _bare(annotation: Any) -> Any:
    """The annotation without None; str for names out of a list."""
    if get_origin(annotation) in (Union, UnionType):
        options = [option for option in get_args(annotation) if option is not NoneType]
        return _bare(options[0]) if len(options) == 1 else annotation
    named = get_origin(annotation) is Literal or (
        isinstance(annotation, type) and issubclass(annotation, StrEnum)
    )
    return str if named else annotation


def to_frame(verdicts: Iterable[Verdict]) -> pl.DataFrame:
    """The verdicts as a table."""
    pl = polars("a table of verdicts")
    frames = [pl.DataFrame(_columns(batch), schema=schema()) for batch in _batches(verdicts)]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema())


def _batches(verdicts: Iterable[Verdict]) -> Iterator[list[Verdict]]:
    left = iter(verdicts)
    while batch := list(islice(left, BATCH)):
        yield batch


def _columns(verdicts: Sequence[Verdict]) -> dict[str, list[Any]]:
    columns = {
        name: [getattr(verdict, name) for verdict in verdicts]
        for name in schema()
        if name not in nested()
    }
    columns["status"] = [verdict.status.value for verdict in verdicts]
    inner = [json.loads(verdict.model_dump_json(include={*nested()})) for verdict in verdicts]
    for name in nested():
        columns[name] = [_json(row[name]) for row in inner]
    return columns


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def from_frame(frame: pl.DataFrame) -> Iterable[Verdict]:
    """The rows of a table as verdicts.

    Raises:
        RecordError: a row is none.
    """
    return chain.from_iterable(
        map(_row, part.iter_rows(named=True)) for part in frame.iter_slices(BATCH)
    )


def _row(row: dict[str, Any]) -> Verdict:
    try:
        return Verdict.model_validate({name: _value(name, value) for name, value in row.items()})
    except (ValidationError, json.JSONDecodeError) as error:
        if isinstance(error, ValidationError):
            reported = error.errors(include_url=False)[0]["msg"]
        else:
            reported = str(error)
        raise RecordError(
            f"record: the row of case {row.get('case')!r} is no verdict: {reported}"
        ) from None


def _value(name: str, value: Any) -> Any:
    return json.loads(value) if name in nested() and isinstance(value, str) else value


def fitted(table: pl.LazyFrame, where: str) -> pl.LazyFrame:
    """The table with today's columns; those an older version lacks get their default.

    Raises:
        RecordError: a column is missing that has no default, is unknown, or has another type.
    """
    pl = polars(where)
    found = table.collect_schema()
    wanted = schema()
    unknown = sorted({*found} - {*wanted})
    wrong = [
        f"{name} is {found[name]}, wanted {kind}"
        for name, kind in wanted.items()
        if name in found and found[name] != kind
    ]
    lacking = [name for name in wanted if name not in found]
    required = [name for name in lacking if Verdict.model_fields[name].is_required()]
    if unknown or wrong or required:
        said = [f"unknown columns {', '.join(unknown)}"] if unknown else []
        said += wrong + ([f"no column {', '.join(required)}"] if required else [])
        raise RecordError(
            f"{where}: no record of verdicts: {'; '.join(said)}; write it with `kdaverify verify"
            " --record`"
        )
    defaults = [pl.lit(_default(name), dtype=wanted[name]).alias(name) for name in lacking]
    return table.with_columns(defaults).select(list(wanted))


def _default(name: str) -> Any:
    value = Verdict.model_fields[name].get_default(call_default_factory=True)
    return _json(value) if name in nested() else list(value) if isinstance(value, tuple) else value


def checked(table: pl.LazyFrame, where: str) -> pl.LazyFrame:
    """The table, once its values have been found to be those of verdicts.

    Raises:
        RecordError: an unknown status, a newer row, an absent value, a pass above tolerance.
    """
    pl = polars(where)
    always = [name for name in schema() if _always(name)]
    over = pl.col("ratio").is_not_null() & ~(pl.col("ratio") <= 1) | pl.col("ratio").is_nan()
    found = table.select(
        newest=pl.col("schema_version").max(),
        statuses=pl.col("status").is_in([*Status]).not_().sum(),
        absent=pl.any_horizontal(pl.col(always).is_null()).sum(),
        boasting=((pl.col("status") == Status.PASS) & over & pl.col("recheck").is_null()).sum(),
    ).collect(engine="streaming")
    newest, statuses, absent, boasting = found.row(0)
    said = [f"{statuses} rows have a status there is not"] * bool(statuses) + [
        f"{absent} rows lack a value"
    ] * bool(absent)
    said += [f"{boasting} rows say PASS above their tolerance"] * bool(boasting)
    if newest is not None and newest > SCHEMA:
        said.append(
            f"it has rows of version {newest}, this kdaverify reads up to {SCHEMA}: read it with"
            " the one that wrote it"
        )
    if said:
        raise RecordError(f"{where}: {'; '.join(said)}")
    return table


def _always(name: str) -> bool:
    return NoneType not in get_args(Verdict.model_fields[name].annotation)
