"""The tutorial does what it says: its files are written,
its commands run, and they print what it shows.
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, blocks

pytestmark = pytest.mark.whole_run

SECONDS = 400


@pytest.mark.rotates
@pytest.mark.parametrize("page", ["tutorial.md", "tutorial_attention.md"])
def test_every_step_of_a_tutorial_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    steps = [block for block in blocks(ROOT / "docs" / page) if block.language]
    assert [block.language for block in steps].count("console") >= 3
    for block in steps:
        if block.language == "python":
            _write(block, tmp_path)
        else:
            _run(block, tmp_path)


def _write(block: Block, folder: Path) -> None:
    file = folder / block.settings["title"]
    replaced = block.settings.get("replaces")
    file.write_text(
        block.text if replaced is None else _replaced(file.read_text(), replaced, block.text)
    )


def _replaced(text: str, begins: str, new: str) -> str:
    """`text` with the top-level definition that begins so replaced."""
    parts = text.split("\n\n\n")
    assert sum(part.startswith(begins) for part in parts) == 1
    return "\n\n\n".join(new.rstrip("\n") if part.startswith(begins) else part for part in parts)


def _run(block: Block, folder: Path) -> None:
    call, _, wanted = block.text.removeprefix("$ ").partition("\n")
    program, *words = call.split()
    start = [sys.executable] if program == "python" else [sys.executable, "-m", program]
    # The checkout under test, seen from the reader's folder; wide enough that no line breaks.
    there = {"PYTHONPATH": str(ROOT), "COLUMNS": "400", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*start, *words],
        cwd=folder,
        env={**os.environ, **there},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"
    assert doctest.OutputChecker().check_output(wanted, said, doctest.ELLIPSIS), (
        f"$ {call}\n{said}{done.stderr}"
    )
