"""`kdaverify kill-matrix` writes the matrix, goes on where it was stopped,
and refuses in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.kills.journal import Journal
from tests.kills.rows import conforming_row, fault_row

Cli = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.whole_run

OUT = Path("m.json")


def journalled(*names: str) -> None:
    journal = Journal(OUT.with_suffix(".journal.jsonl"), resume=True)
    for name in names:
        journal.append(fault_row(name))


def test_a_fault_is_hunted_and_the_matrix_written(cli: Cli) -> None:
    code, out, err = cli(
        "kill-matrix", "--faults", "GA8", "--no-legal", "--workers", 1, "--out", OUT
    )
    assert code == 0, err
    assert "GA8 (smoke): killed by activations" in out and "killed: 1 of 1 faults (100.0%)" in out
    found = json.loads(OUT.read_text())
    assert (found["total"], found["killed"], found["legal_runs"], found["false_alarms"]) == (
        1,
        1,
        0,
        0,
    )
    assert "--impl fault:GA8 --property activations" in found["faults"][0]["by"]["replay"]


def test_what_is_in_the_journal_is_not_done_again(cli: Cli) -> None:
    journalled("H1", "H2")
    code, out, err = cli(
        "kill-matrix", "--faults", "H1,H2", "--no-legal", "--resume", "--minutes", 0, "--out", OUT
    )
    assert code == 0, err
    assert "killed: 2 of 2 faults" in out
    assert not OUT.with_suffix(".journal.jsonl").exists()


def test_a_stop_keeps_what_is_done_and_says_so(cli: Cli) -> None:
    journalled("H1")
    code, out, _ = cli(
        "kill-matrix", "--faults", "H1,H2", "--no-legal", "--resume", "--minutes", 0, "--out", OUT
    )
    assert code == 3
    assert (
        "killed: 1 of 1 faults (100.0%), 1 of them under smoke; 1 not finished" in out
        and "go on with --resume" in out
    )


def test_a_false_alarm_is_a_failure(cli: Cli) -> None:
    Journal(OUT.with_suffix(".journal.jsonl"), resume=True).append(
        conforming_row(false_alarms=("o is off",))
    )
    journalled("H1")
    code, out, _ = cli("kill-matrix", "--faults", "H1", "--resume", "--minutes", 0, "--out", OUT)
    assert code == 1 and "false alarm: eager: o is off" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--profile", "nightly"), "--profile: wanted smoke or acceptance, got 'nightly'"),
        (("--faults", "ZZ*"), "--faults: no fault matches 'ZZ*'"),
    ],
)
def test_what_cannot_be_tested_is_said(cli: Cli, words: tuple[str, ...], said: str) -> None:
    code, _, err = cli("kill-matrix", *words)
    assert code == 2 and said in err


def test_an_unfinished_run_is_not_overwritten(cli: Cli) -> None:
    journalled("H1")
    code, _, err = cli("kill-matrix", "--faults", "H1", "--out", OUT)
    assert code == 2 and "go on from it with --resume, or delete it" in err
