"""Records: files of verdicts, one a row, written so that a crash loses at most the row being written."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from kdaverify.verdicts.verdict import Verdict

# Columns of a parquet file beside the row itself: what people filter by.
COLUMNS = (
    "implementation",
    "property",
    "dtype",
    "regime",
    "case",
    "output",
    "status",
    "statistic",
    "value",
    "budget",
    "ratio",
    "grade",
    "stage",
    "seed",
)


class RecordError(ValueError):
    """A record that cannot be read or written; the message names the file, the line and what to do."""


@dataclass(frozen=True)
class Record:
    """What a file holds.

    Args:
        verdicts: its complete rows, in order.
        truncated: what is wrong with a last row that was cut off by a crash; "" where none was.
    """

    verdicts: tuple[Verdict, ...]
    truncated: str = ""


class RecordWriter:
    """Appends verdicts to a file, each one handed to the system before `append` returns; `settle` puts the rows of this writer in order.

    The rows that were there before stay. A .parquet file is written by `settle`, until when its new rows lie in a .jsonl.part file beside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = path.with_suffix(".jsonl.part") if is_parquet(path) else path
        if is_parquet(path):
            _pyarrow(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(self._lines)
        self._file = self._lines.open("ab")
        self._start = self._file.tell()

    def append(self, verdict: Verdict) -> None:
        self._file.write(_line(verdict))
        self._file.flush()

    def settle(self, verdicts: Iterable[Verdict]) -> None:
        """Replaces the rows of this writer by `verdicts`, in one step that a crash cannot split, and closes it."""
        self._file.close()
        earlier = self._lines.read_bytes()[: self._start]
        _replace(self._lines, earlier + b"".join(_line(verdict) for verdict in verdicts))
        if is_parquet(self.path):
            there = read(self.path).verdicts if self.path.exists() else ()
            _to_parquet((*there, *read(self._lines).verdicts), self.path)
            self._lines.unlink()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read(path: Path) -> Record:
    """The verdicts of a record.

    Returns:
        Every complete row; a last row cut off in the middle is left out and reported.
    Raises:
        RecordError: the file is absent, or a row before the last is not a verdict, or comes from a newer version.
    """
    if not path.exists():
        raise RecordError(f"record: no file {path}; a record is written by `kdaverify verify --record {path}`")
    if path.suffix == ".parquet":
        return Record(tuple(_from_parquet(path)))
    *complete, last = path.read_bytes().split(b"\n")
    verdicts = tuple(_verdict(line, path, number) for number, line in enumerate(complete, start=1) if line)
    if not last:
        return Record(verdicts)
    return Record(
        verdicts,
        truncated=f"{path}: row {len(complete) + 1} was cut off after {len(last)} bytes; its test was running when the session died",
    )


def is_parquet(path: Path) -> bool:
    """Whether the ending asks for parquet.

    Raises:
        RecordError: an ending that is neither .jsonl nor .parquet.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise RecordError(f"record: wanted a file ending in .jsonl or .parquet, got {path}; rename it")
    return path.suffix == ".parquet"


def _line(verdict: Verdict) -> bytes:
    return verdict.model_dump_json().encode() + b"\n"


def _verdict(line: bytes, path: Path, number: int) -> Verdict:
    try:
        return Verdict.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise RecordError(
            f"{path}: row {number} is no verdict of this version: {where} {first['msg']}; read it with the version that wrote it"
        ) from None


def _end_last_line(path: Path) -> None:
    """Drops a row that an earlier crash cut off, so that the next one does not continue it."""
    if not path.exists():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        _replace(path, content[: content.rfind(b"\n") + 1])


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise RecordError(f"record: {path} needs pyarrow; pip install 'kdaverify[parquet]', or end the name in .jsonl") from None
    return pa, parquet


def _to_parquet(verdicts: Sequence[Verdict], path: Path) -> None:
    pyarrow, parquet = _pyarrow(path)
    table: dict[str, list[Any]] = {name: [getattr(verdict, name) for verdict in verdicts] for name in COLUMNS}
    table["status"] = [verdict.status.value for verdict in verdicts]
    # The row as JSON: infinities and details survive as they are.
    table["row"] = [verdict.model_dump_json() for verdict in verdicts]
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(table), content)
    _replace(path, content.getvalue())


def _from_parquet(path: Path) -> Iterable[Verdict]:
    rows: list[str] = _pyarrow(path)[1].read_table(path, columns=["row"])["row"].to_pylist()
    return (Verdict.model_validate_json(row) for row in rows)
