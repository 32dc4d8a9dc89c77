"""Records: files of verdicts, one a row; at most the last is lost in a crash."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kdaverify.verdicts import parquet
from kdaverify.verdicts.columns import RecordError, from_frame, polars, to_frame
from kdaverify.verdicts.lines import Torn, line_of, read_lines, sealed
from kdaverify.verdicts.seal import Account, Seal
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Record", "RecordError", "RecordWriter", "Table", "cut_back", "is_parquet", "lines_there",
    "read", "replace", "scan",
]  # fmt: skip


@dataclass(frozen=True)
class Record:
    """What a file holds.

    Args:
        verdicts: its complete rows, in order.
        truncated: what is wrong with a last row that was cut off by a crash; "" where none was.
        accounts: what the sessions that closed it say beside their rows.
        open_rows: how many rows are of sessions that never closed it.
    """

    verdicts: tuple[Verdict, ...]
    truncated: str = ""
    accounts: tuple[Account, ...] = ()
    open_rows: int = 0


@dataclass(frozen=True)
class Table:
    """The same as columns, for files of any length.

    Args:
        rows: a column for every field of a verdict; read when requested from Parquet.
        truncated, accounts, open_rows: as of a Record.
    """

    rows: pl.LazyFrame
    truncated: str = ""
    accounts: tuple[Account, ...] = ()
    open_rows: int = 0


class RecordWriter:
    """Appends verdicts to a file before `append` returns; `settle` orders this writer's rows.

    The rows that were there before stay. A .parquet file is written by `settle`, until when its new
    rows lie in a .jsonl.part file beside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = _lines_of(path)
        if is_parquet(path):
            polars(str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(self._lines)
        self._file = self._lines.open("ab")
        self._start = self._file.tell()

    def append(self, verdict: Verdict) -> None:
        self._file.write(line_of(verdict))
        self._file.flush()

    def settle(self, verdicts: Iterable[Verdict], account: Account | None = None) -> None:
        """Replaces this writer's rows by `verdicts`, sealed in one step, and closes the file.

        Args:
            account: what the session says beside them.
        """
        self._file.close()
        replace(
            self._lines,
            sealed(
                self._lines.read_bytes()[: self._start],
                verdicts,
                () if account is None else (account,),
            ),
        )
        if is_parquet(self.path):
            there = read(self.path) if self.path.exists() else Record(())
            new = read(self._lines)
            rows = to_frame((*there.verdicts, *new.verdicts))
            parquet.write(
                rows,
                self.path,
                (*there.accounts, *new.accounts),
                open_rows=there.open_rows + new.open_rows,
            )
            self._lines.unlink()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path) -> Record:
    """The verdicts of a record.

    Returns:
        Every complete row; a last row cut off in the middle is left out and reported.
    Raises:
        RecordError: the file is absent, a row before the last is not a verdict, comes from a newer
            version, or was changed once sealed.
    """
    if _there(path):
        rows, seal = parquet.scan(path)
        frame = rows.collect()
        return Record(tuple(from_frame(frame)), "", *_of_table(seal, frame.height))
    found = list(read_lines(path))
    verdicts = tuple(item for item in found if isinstance(item, Verdict))
    return Record(
        verdicts,
        *_of_lines([item for item in found if not isinstance(item, Verdict)], len(verdicts)),
    )


def scan(path: Path) -> Table:
    """The same as columns; of a Parquet file nothing is read yet but what shows that it is whole.

    Raises:
        RecordError: as `read`.
    """
    if _there(path):
        rows, seal = parquet.scan(path)
        return Table(
            rows,
            "",
            *_of_table(seal, 0 if seal else rows.select(polars(str(path)).len()).collect().item()),
        )
    others: list[Seal | Torn] = []
    rows = to_frame(_parted(read_lines(path), others))
    return Table(rows.lazy(), *_of_lines(others, rows.height))


def _parted(items: Iterable[Verdict | Seal | Torn], others: list[Seal | Torn]) -> Iterable[Verdict]:
    """The verdicts among the items; the others are put aside."""
    for item in items:
        if isinstance(item, Verdict):
            yield item
        else:
            others.append(item)


def _of_lines(others: list[Seal | Torn], rows: int) -> tuple[str, tuple[Account, ...], int]:
    """Truncation, accounts and open rows of a .jsonl file."""
    seals = [item for item in others if isinstance(item, Seal)]
    torn = [item.message for item in others if isinstance(item, Torn)]
    accounts = tuple(account for seal in seals for account in seal.accounts)
    return "".join(torn), accounts, rows - sum(seal.rows - seal.open_rows for seal in seals)


def _of_table(seal: Seal | None, rows: int) -> tuple[tuple[Account, ...], int]:
    """Accounts and open rows of a .parquet file."""
    return ((), rows) if seal is None else (seal.accounts, seal.open_rows)


def _there(path: Path) -> bool:
    """Whether it is a .parquet file.

    Raises:
        RecordError: there is no such file.
    """
    if path.is_dir():
        raise RecordError(f"record: wanted a .jsonl or .parquet file, got the folder {path}")
    if not path.is_file():
        raise RecordError(
            f"record: no file {path}; a record is written by `kdaverify verify --record {path}`"
        )
    return path.suffix == ".parquet"


def is_parquet(path: Path) -> bool:
    """Whether the ending requests parquet.

    Raises:
        RecordError: an ending that is neither .jsonl nor .parquet.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise RecordError(
            f"record: wanted a file ending in .jsonl or .parquet, got {path}; rename it"
        )
    return path.suffix == ".parquet"


def lines_there(path: Path) -> int:
    """Bytes of the lines that a new session would append to.

    Raises:
        RecordError: an ending that is neither .jsonl nor .parquet.
    """
    lines = _lines_of(path)
    return lines.stat().st_size if lines.is_file() else 0


def cut_back(path: Path, size: int) -> None:
    """Drops what an unfinished session has appended since `lines_there` was `size`."""
    lines = _lines_of(path)
    if lines.is_file() and lines.stat().st_size > size:
        os.truncate(lines, size)


def _lines_of(path: Path) -> Path:
    """Where new rows are written, line by line."""
    return path.with_suffix(".jsonl.part") if is_parquet(path) else path


def _end_last_line(path: Path) -> None:
    """Drops a row that an earlier crash cut off, so that the next one does not continue it."""
    if not path.exists():
        return
    whole = 0
    with path.open("r+b") as lines:
        for line in lines:
            whole += len(line) if line.endswith(b"\n") else 0
        lines.truncate(whole)


def replace(path: Path, content: bytes) -> None:
    """Gives a file its content in one step that a crash cannot split."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)
