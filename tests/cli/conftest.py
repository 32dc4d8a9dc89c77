"""The command line, called as a user calls it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.cli.app import main
from kdaverify.problems import Problem
from tests.rows import PORT


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `kdaverify WORDS...` in a folder with port.py;
    gives exit code, output and complaints.
    """
    (tmp_path / "port.py").write_text(PORT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kdaverify", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def problem() -> Problem:
    """Small and mild."""
    regimes = {
        "gate": "mild",
        "key": "random",
        "beta": "uniform",
        "state": "random",
        "value": "normal",
    }
    return Problem.model_validate(
        {"B": 1, "T": 7, "H": 1, "HV": 2, "K": 4, "V": 3, "dtype": "fp32", "seed": 5, **regimes}
    )
