"""`kdaverify gate`, `ledger` and `merge` from the command line:
exit codes, hostile names, files for other programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from kdaverify.checks.status import Status
from kdaverify.cli.app import app, main
from tests.rows import row
from tests.verdicts.gated import ACCOUNT, GOOD, closed
from tests.verdicts.test_ledger import panel

Call = Callable[..., int]
HOSTILE = "[red]x[/red]\x1b[31m\u202e<script>&\x00"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Runs a command in a folder of its own; gives the exit code of the process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: Any) -> int:
        monkeypatch.setattr("sys.argv", ["kdaverify", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(str(ended.value.code or 0))

    return run


def test_each_decision_has_its_exit_code_and_its_files(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (
        closed(tmp_path / "g.parquet"),
        closed(tmp_path / "b.jsonl", [*GOOD, row(Status.FAIL, case="kda-9", message="off\nfar")]),
    )
    for paths, code, word in (
        ([good], 0, "ACCEPT"),
        ([good, bad], 1, "REJECT"),
        ([closed(tmp_path / "n.jsonl", [], None)], 3, "NOT ENOUGH"),
    ):
        assert call("gate", *paths, "--junit", "out/j.xml", "--json", "out/d.json") == code
        assert f"decision: {word}" in capsys.readouterr().out
        reported = json.loads((tmp_path / "out" / "d.json").read_text())
        root = ET.fromstring((tmp_path / "out" / "j.xml").read_bytes())  # noqa: S314 # our own
        assert reported["exit_code"] == code
        assert (root.get("failures"), root.get("errors")) == {
            0: ("0", "0"),
            1: ("2", "0"),
            3: ("0", "1"),
        }[code]


WRONG = [
    "gate absent.parquet",
    "gate",
    "gate .",
    "gate g.parquet --rules x",
    "gate g.parquet --waivers w.toml",
    "gate g.parquet --ledger absent",
    "merge absent.jsonl -o a.parquet",
    "merge g.parquet -o a.csv",
    "ledger accept absent.jsonl",
    "ledger accept g.parquet",
]


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    call: Call, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    closed(tmp_path / "g.parquet")
    assert call(*words.split()) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_hostile_names_are_shown_as_they_are(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row(
            Status.ERROR,
            implementation=HOSTILE,
            property=HOSTILE,
            message=HOSTILE,
            regime=HOSTILE,
            replay=HOSTILE,
            dtype=HOSTILE,
        )
    ]
    account = ACCOUNT.model_copy(update={"trouble": {"port": (HOSTILE,)}})
    assert call("gate", closed(tmp_path / "h.parquet", rows, account), "--junit", "j.xml") == 2
    shown = capsys.readouterr().out
    assert "[red]x[/red]" in shown
    assert not set(shown) & set("\x1b\u202e\x00")
    # our own
    assert ET.fromstring((tmp_path / "j.xml").read_bytes()).get("failures") == "1"  # noqa: S314


def test_junit_is_the_same_whatever_the_order_in_which_workers_wrote(
    call: Call, tmp_path: Path
) -> None:
    rows = [
        *GOOD,
        *(row(Status.FAIL, case=f"kda-{i}", message=f"off by {i}") for i in range(9)),
        row(Status.SKIP, regime="deep"),
    ]
    for name, order in (("a", rows), ("b", rows[::-1])):
        call("gate", closed(tmp_path / f"{name}.jsonl", order), "--junit", f"{name}.xml")
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "b.xml").read_bytes()


def test_merge_makes_one_closed_record(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed(tmp_path / "a.jsonl", GOOD[::2])
    closed(tmp_path / "b.parquet", GOOD[1:])
    assert call("merge", "a.jsonl", "b.parquet", "--out", "all.parquet") == 0
    assert "24 rows of 1 sessions; 11 duplicates left out" in capsys.readouterr().out
    assert call("gate", "all.parquet") == 0


def test_the_ledger_is_written_once_reviewed_and_never_loosened(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, factor in (("first", 1.0), ("better", 0.9), ("worse", 1.2)):
        closed(tmp_path / f"{name}.parquet", [*GOOD, *panel(factor)])
    written = tmp_path / "ledger" / "port.-.txt"
    assert call("ledger", "accept", "first.parquet", "--ledger", "ledger") == 2
    assert "review" in capsys.readouterr().err and not written.exists()
    assert call("ledger", "accept", "first.parquet", "--ledger", "ledger", "--yes") == 0
    assert call("gate", "worse.parquet", "--ledger", "ledger") == 1
    assert call("ledger", "accept", "better.parquet", "--ledger", "ledger", "--yes") == 0
    assert "+9.000e-02  panel/bf16/mild/kda-0/o" in capsys.readouterr().out
    assert call("ledger", "accept", "worse.parquet", "--ledger", "ledger", "--yes") == 1
    assert call("gate", "first.parquet", "--ledger", "ledger") == 1
    assert call("ledger", "accept", "worse.parquet", "--ledger", "ledger", "--yes", "--loosen") == 0
    assert call("gate", "first.parquet", "--ledger", "ledger") == 0


def test_the_commands_explain_themselves() -> None:
    for words in (["gate", "--help"], ["merge", "--help"], ["ledger", "accept", "--help"]):
        assert CliRunner().invoke(app, words).exit_code == 0
