"""The journal keeps what is finished through any end,
and takes over no row that other source made.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.kills.journal import Journal, JournalError
from tests.kills.rows import conforming_row, fault_row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "matrix.journal.jsonl"


def test_rows_are_found_again(path: Path) -> None:
    journal = Journal(path, resume=False)
    journal.append(fault_row("H1"))
    journal.append(conforming_row())
    assert Journal(path, resume=True).rows == [fault_row("H1"), conforming_row()]


def test_a_line_cut_short_by_a_kill_is_dropped_and_not_continued(path: Path) -> None:
    Journal(path, resume=False).append(fault_row("H1"))
    with path.open("a") as file:
        file.write(fault_row("H2").model_dump_json()[:40])
    again = Journal(path, resume=True)
    again.append(fault_row("H4"))
    assert [row.id for row in Journal(path, resume=True).rows] == ["H1", "H4"]


def test_rows_are_not_overwritten_untested(path: Path) -> None:
    Journal(path, resume=False).append(fault_row("H1"))
    with pytest.raises(
        JournalError, match="holds 1 rows of an unfinished run: go on from it with --resume"
    ):
        Journal(path, resume=False)


def test_rows_of_other_source_are_refused(path: Path) -> None:
    path.write_text('{"source": "older"}\n' + fault_row("H1").model_dump_json() + "\n")
    with pytest.raises(JournalError, match="made by other source"):
        Journal(path, resume=True)
