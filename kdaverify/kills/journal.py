"""An append-only file of finished rows, one a line: what was computed survives a kill -9."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

import kdaverify
from kdaverify.kills.rows import ConformingRow, FaultRow
from oracles.cache import digest_of_sources


class JournalError(Exception):
    """The journal belongs to another run; the message says what to do."""


class Journal:
    """Rows of one run of the matrix.

    Args:
        path: the file; its first line says what the rows were made by.
        resume: whether rows that are there are taken over.
    Raises:
        JournalError: there are rows and they are not to be taken over, or other source made them.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.rows: list[FaultRow | ConformingRow] = []
        head = json.dumps({"source": source()})
        lines = path.read_text().splitlines() if path.is_file() else []
        if len(lines) > 1 and not resume:
            raise JournalError(
                f"{path}: holds {len(lines) - 1} rows of an unfinished run: go on from it with"
                " --resume, or delete it"
            )
        if lines and resume and lines[0] != head:
            raise JournalError(
                f"{path}: its rows were made by other source; delete it and run without --resume"
            )
        self.rows += [row for line in lines[1:] if (row := _row(line)) is not None]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written again: a line that was cut short is not continued.
        path.write_text("\n".join([head, *(row.model_dump_json() for row in self.rows), ""]))

    def append(self, row: FaultRow | ConformingRow) -> None:
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(f"{row.model_dump_json()}\n")
            file.flush()
            os.fsync(file.fileno())


def _row(line: str) -> FaultRow | ConformingRow | None:
    """None for a line that was cut short."""
    try:
        kind = FaultRow if json.loads(line)["row"] == "fault" else ConformingRow
        return kind.model_validate_json(line)
    except (ValueError, KeyError, ValidationError):
        return None


def source() -> str:
    """A digest of all that decides a row."""
    import torch

    package = Path(kdaverify.__file__).parent
    folders = {package, package.parent / "oracles", kdaverify.suites_folder()}
    return " ".join(digest_of_sources(folder, torch.__version__)[:16] for folder in sorted(folders))
