"""A record keeps every verdict, in order, whatever happens to the session that writes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kdaverify.checks.status import Status
from kdaverify.verdicts.record import RecordError, RecordWriter, read
from kdaverify.verdicts.verdict import SCHEMA
from tests.rows import ROOT, row

ROWS = [
    row(
        case="kda-1",
        ratio=0.5,
        value=1e-9,
        budget=2e-9,
        grade="A",
        detail={"cut": 17, "way": "chunk-step"},
    ),
    row(Status.FAIL, case="kda-2", ratio=math.inf, worst="token 3"),
    row(Status.SKIP, case="kda-3", message="no packs"),
]


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    with RecordWriter(tmp_path / name) as writer:
        for verdict in ROWS:
            writer.append(verdict)
        writer.settle(ROWS)
    assert list(read(tmp_path / name).verdicts) == ROWS


@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_a_second_session_appends_and_orders_only_its_own_rows(tmp_path: Path, name: str) -> None:
    for rows in (ROWS[2:], ROWS[:2]):
        with RecordWriter(tmp_path / name) as writer:
            for verdict in reversed(rows):
                writer.append(verdict)
            writer.settle(rows)
    assert [verdict.case for verdict in read(tmp_path / name).verdicts] == [
        "kda-3",
        "kda-1",
        "kda-2",
    ]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_row_is_on_file_before_the_next_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    code = (
        "import os, sys; from pathlib import Path; from kdaverify.verdicts.record import"
        " RecordWriter; from tests.rows import row;w = RecordWriter(Path(sys.argv[1]));"
        " w.append(row(case='kda-1')); w.append(row(case='kda-2')); os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, check=False, timeout=60
    )
    assert died.returncode == 9
    assert [verdict.case for verdict in read(path).verdicts] == ["kda-1", "kda-2"]


@pytest.mark.parametrize("lost", [1, 2, 40, 300])
def test_a_row_cut_off_by_a_crash_is_reported_and_costs_no_other(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "r.jsonl"
    with RecordWriter(path) as writer:
        for verdict in ROWS:
            writer.append(verdict)
    path.write_bytes(path.read_bytes()[:-lost])
    found = read(path)
    assert list(found.verdicts) == ROWS[:2]
    assert "row 3 was cut off" in found.truncated


def test_a_session_after_a_crash_does_not_continue_the_torn_row(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(ROWS[0].model_dump_json() + "\n" + ROWS[1].model_dump_json()[:50])
    with RecordWriter(path) as writer:
        writer.append(ROWS[2])
    found = read(path)
    assert (list(found.verdicts), found.truncated) == ([ROWS[0], ROWS[2]], "")


def test_a_bad_row_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(ROWS[0].model_dump_json() + "\nnonsense\n" + ROWS[1].model_dump_json() + "\n")
    with pytest.raises(RecordError, match="row 2 is no JSON"):
        read(path)


def test_a_row_of_before_stages_were_named_is_read(tmp_path: Path) -> None:
    reported = row(Status.FAIL, stage="solve", located="on exact inputs")
    plain = row(Status.FAIL)
    path = tmp_path / "r.jsonl"
    path.write_text(
        reported.model_dump_json() + "\n" + plain.model_dump_json(exclude={"located"}) + "\n"
    )
    assert '"stage":null' in path.read_text()
    assert read(path).verdicts == (reported, plain)


def test_a_row_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(
        ROWS[0]
        .model_dump_json()
        .replace(f'"schema_version":{SCHEMA}', f'"schema_version":{SCHEMA + 1}')
        + "\n"
    )
    with pytest.raises(RecordError, match="schema_version"):
        read(path)


def test_a_missing_file_and_an_unknown_ending_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no file"):
        read(tmp_path / "absent.jsonl")
    with pytest.raises(RecordError, match=r"ending in \.jsonl or \.parquet"):
        RecordWriter(tmp_path / "r.csv")


def test_parquet_without_polars_says_which_extra_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(RecordError, match=r"kdaverify\[parquet\]"):
        RecordWriter(tmp_path / "r.parquet")
