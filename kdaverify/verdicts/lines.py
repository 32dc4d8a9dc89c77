"""A record as lines of JSON: verdicts as they come, and a seal where a session closed it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kdaverify.verdicts.columns import RecordError
from kdaverify.verdicts.seal import BLANK, Account, Seal, SealedLine
from kdaverify.verdicts.verdict import Verdict, completed

_SEALED = b'{"seal":'


@dataclass(frozen=True)
class Torn:
    """A last line that was cut off; `message` says where."""

    message: str


def read_lines(path: Path) -> Iterator[Verdict | Seal | Torn]:
    """The rows and seals of a file, in order; nothing of it is held.

    Raises:
        RecordError: a complete line is neither, or what a seal covers was changed.
    """
    digest, since = hashlib.sha256(), 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                yield Torn(
                    f"{path}: row {number} was cut off after {len(line)} bytes; its test was"
                    " running when the session died"
                )
                return
            if line.startswith(_SEALED):
                seal = _seal(line, f"{path}: line {number}")
                covered = digest.copy()
                covered.update(line.replace(seal.digest.encode(), BLANK.encode(), 1))
                if covered.hexdigest() != seal.digest or seal.rows > since:
                    raise RecordError(
                        f"{path}: line {number}: what it seals was changed or damaged; take the"
                        " original"
                    )
                yield seal
                since = 0
            elif line != b"\n":
                yield _verdict(line, path, number)
                since += 1
            digest.update(line)


def line_of(verdict: Verdict) -> bytes:
    return verdict.model_dump_json().encode() + b"\n"


def sealed(
    before: bytes, rows: Iterable[Verdict], accounts: tuple[Account, ...], *, open_rows: int = 0
) -> bytes:
    """Everything that was before, the rows, and the seal that closes them."""
    lines = [line_of(verdict) for verdict in rows]
    content = before + b"".join(lines)
    blank = _sealing(Seal(rows=len(lines), digest=BLANK, accounts=accounts, open_rows=open_rows))
    return content + _signed(blank, hashlib.sha256(content + blank).hexdigest())


def seal(path: Path, account: Account) -> None:
    """Closes the rows of a file that no seal covers yet, as they lie; nothing of it is held."""
    digest, rows = hashlib.sha256(), 0
    with path.open("r+b") as lines:
        for line in lines:
            rows = 0 if line.startswith(_SEALED) else rows + (line != b"\n")
            digest.update(line)
        blank = _sealing(Seal(rows=rows, digest=BLANK, accounts=(account,)))
        digest.update(blank)
        lines.write(_signed(blank, digest.hexdigest()))


def cut(path: Path, rows: int) -> None:
    """Leaves the first rows of a file, and no seal."""
    with path.open("r+b") as lines:
        kept = 0
        while kept < rows:
            kept += lines.readline() != b"\n"
        lines.truncate(lines.tell())


def _signed(blank: bytes, digest: str) -> bytes:
    return blank.replace(BLANK.encode(), digest.encode(), 1)


def _sealing(seal: Seal) -> bytes:
    return SealedLine(seal=seal).model_dump_json().encode() + b"\n"


def _seal(line: bytes, where: str) -> Seal:
    try:
        return SealedLine.model_validate_json(line).seal
    except ValidationError as error:
        raise RecordError(
            f"{where} is no seal of this version: {_first(error)}; read it with the version that"
            " wrote it"
        ) from None


def _verdict(line: bytes, path: Path, number: int) -> Verdict:
    try:
        return completed(Verdict.model_validate_json(line))
    except ValueError as error:
        if isinstance(error, ValidationError) and error.errors()[0]["type"] == "json_invalid":
            raise RecordError(
                f"{path}: wanted a record of `kdaverify verify`, got a file whose row {number} is"
                " no JSON"
            ) from None
        reported = _first(error) if isinstance(error, ValidationError) else str(error)
        raise RecordError(
            f"{path}: row {number} is no verdict of this version: {reported}; read it with the"
            " version that wrote it"
        ) from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])} {first['msg']}"
