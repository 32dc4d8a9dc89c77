"""What records would change of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kdaverify.verdicts import ledger
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.record import RecordError, scan
from kdaverify.verdicts.verdict import NAME_FIELDS
from kdaverify.verdicts.versions import mixed


@dataclass(frozen=True)
class Update:
    """The change of one file.

    Args:
        before, after: its text; "" where there is none yet.
        loosened: cases that get worse or are left out.
    """

    path: Path
    before: str
    after: str
    loosened: tuple[str, ...]


def updates(records: Sequence[Path], folder: Path) -> list[Update]:
    """The change of every implementation and device of the records.

    Raises:
        RecordError: a damaged, open or mixed record, or one without fixed panel cases.
        FileError: a file of the ledger is none.
    """
    pl = polars("the ledger")
    tables = [scan(path) for path in dict.fromkeys(records)]
    for path, table in zip(dict.fromkeys(records), tables, strict=True):
        if table.truncated or table.open_rows:
            raise RecordError(
                f"{path} was never closed by its session: accept the record of a run that ended"
            )
    rows = pl.concat([table.rows for table in tables])
    for name, sentences in mixed(rows).items():
        raise RecordError(
            f"{name} was judged on mixed versions, {sentences[0]}: accept the record of one run"
        )
    wanted = ("implementation", "status", "ratio", "device", "mode", *NAME_FIELDS)
    own = (
        rows.select(wanted)
        .filter(pl.col("property").is_in(ledger.FIXED))
        .collect(engine="streaming")
    )
    found = [
        _update(folder / ledger.file_name(name, device), name, device, cases)
        for (name,), part in sorted(own.partition_by("implementation", as_dict=True).items())
        for device, cases in sorted(ledger.panel(part).items())
    ]
    if not found:
        raise RecordError(
            "no case of the fixed panel passed in these records: there is nothing to accept"
        )
    return found


def _update(path: Path, name: str, device: str, cases: dict[str, float]) -> Update:
    after = ledger.text(name, device, cases)
    if not path.exists():
        return Update(path, "", after, ())
    return Update(
        path,
        path.read_text(encoding="utf-8"),
        after,
        tuple(ledger.loosened(ledger.read(path, name, device), cases)),
    )
