"""The benchmark of speed knows work by the files it is done in: they have to be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed import CALL, ENSEMBLE, EXACT, HARNESS, IMPORTS, KERNEL, WORK, kind_of

ROOT = Path(__file__).parent.parent
LISTED = [file for file, *_ in (*CALL, *WORK) if not file.startswith("<")]


@pytest.mark.parametrize("file", LISTED)
def test_every_listed_file_exists(file: str) -> None:
    folder, _, start = file.rpartition("/")
    assert any((ROOT / folder).glob(f"{start}*"))


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([("oracles/chunk.py", "state"), ("kdaverify/checks/execute.py", "watched")], KERNEL),
        ([("oracles/chunk.py", "state"), ("kdaverify/budgets/emulate.py", "run")], ENSEMBLE),
        ([("oracles/running_error.py", "step"), ("kdaverify/budgets/standard.py", "_")], EXACT),
        (
            [("kdaverify/budgets/statistics.py", "rms"), ("kdaverify/checks/compare.py", "_")],
            HARNESS,
        ),
        ([("<frozen importlib._bootstrap>", "_load")], IMPORTS),
        ([("kdaverify/verdicts/record.py", "append")], HARNESS),
    ],
)
def test_the_innermost_listed_frame_decides(frames: list[tuple[str, str]], kind: str) -> None:
    assert kind_of(frames) == kind
