"""A record as a Parquet file: typed columns, and a seal over the whole file in its footer."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from kdaverify.verdicts.columns import RecordError, checked, fitted, polars, to_frame
from kdaverify.verdicts.seal import BLANK, Account, Seal
from kdaverify.verdicts.verdict import Verdict, completed

if TYPE_CHECKING:
    import polars as pl

KEY: Final = "kdaverify"
"""The name of the seal in the file's metadata."""
FIRST_VERSION: Final = "row"
"""The column that only files of version 1 have: the verdict as JSON."""
_TAIL: Final = 8
"""Bytes a file ends with: the length of the footer before them, and "PAR1"."""


def write(
    frame: pl.DataFrame, path: Path, accounts: tuple[Account, ...], *, open_rows: int = 0
) -> None:
    """Writes the table and seals it; the file is there in full or not at all.

    Args:
        accounts: of the sessions whose rows these are.
        open_rows: how many of them no session closed.
    """
    blank = secrets.token_hex(32)
    seal = Seal(rows=frame.height, digest=blank, accounts=accounts, open_rows=open_rows)
    beside = path.with_name(path.name + ".new")
    frame.write_parquet(beside, metadata={KEY: seal.model_dump_json()})
    place = _place(beside, blank.encode())
    _put(beside, place, BLANK.encode())
    _put(beside, place, _digest(beside, place).encode())
    beside.replace(path)


def scan(path: Path) -> tuple[pl.LazyFrame, Seal | None]:
    """The columns of a file, read when requested, and its seal; version 1 had none.

    Raises:
        RecordError: it is no Parquet file, no record, or was changed since it was sealed.
    """
    pl = polars(str(path))
    try:
        metadata: dict[str, str] = pl.read_parquet_metadata(path)
        names = pl.read_parquet_schema(path)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged(path, str(error)) from None
    if KEY not in metadata:
        if FIRST_VERSION not in names:
            raise RecordError(
                f"{path}: a Parquet file, but no record of verdicts; a record is written by"
                " `kdaverify verify --record`"
            )
        return _upgraded(path).lazy(), None
    seal = _seal(path, metadata[KEY])
    return checked(fitted(pl.scan_parquet(path), str(path)), str(path)), seal


def _seal(path: Path, text: str) -> Seal:
    try:
        seal = Seal.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RecordError(
            f"{path}: its seal is none of this version: {first['msg']}; read it with the version"
            " that wrote it"
        ) from None
    if _digest(path, _place(path, seal.digest.encode())) != seal.digest:
        raise _damaged(path, "what it holds is not what was sealed")
    return seal


def _damaged(path: Path, why: str) -> RecordError:
    return RecordError(
        f"{path}: the file was changed or damaged ({why}); take the original, or write it again"
    )


def _place(path: Path, digest: bytes) -> int:
    """Where in the file the digest stands."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(size - _TAIL)
        start = max(size - _TAIL - int.from_bytes(file.read(4), "little"), 0)
        file.seek(start)
        footer = file.read()
    if footer.count(digest) != 1:
        raise _damaged(path, "its seal is not in one place")
    return start + footer.index(digest)


def _digest(path: Path, place: int) -> str:
    """SHA-256 of the file with zeros where its digest stands."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = place
        while left:
            part = file.read(min(left, 1 << 20))
            digest.update(part)
            left -= len(part)
        file.seek(place + len(BLANK))
        digest.update(BLANK.encode())
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _put(path: Path, place: int, digest: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(digest)


def _upgraded(path: Path) -> pl.DataFrame:
    rows: list[Any] = (
        polars(str(path)).read_parquet(path, columns=[FIRST_VERSION])[FIRST_VERSION].to_list()
    )
    return to_frame(
        _of_first_version(row, path, number) for number, row in enumerate(rows, start=1)
    )


def _of_first_version(row: str, path: Path, number: int) -> Verdict:
    try:
        return completed(Verdict.model_validate_json(row))
    except ValueError as error:
        first, _, _ = str(error).partition("\n")
        raise RecordError(f"{path}: row {number} is no verdict: {first}") from None
