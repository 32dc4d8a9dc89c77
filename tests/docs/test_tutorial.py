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


PAGES = ("tutorial.md", "tutorial_attention.md")


def steps(page: str) -> list[Block]:
    return [block for block in blocks(ROOT / "docs" / page) if block.language]


COMMANDS = [
    (page, number)
    for page in PAGES
    for number, block in enumerate(steps(page))
    if block.language == "console"
]


def test_every_tutorial_has_commands() -> None:
    assert all([page for page, _ in COMMANDS].count(page) >= 3 for page in PAGES)


@pytest.mark.rotates
@pytest.mark.parametrize(("page", "number"), COMMANDS)
def test_every_command_of_a_tutorial_prints_what_it_shows(
    page: str, number: int, tmp_path: Path
) -> None:
    """With the files as they are at that step: no command reads what an earlier one wrote."""
    for block in steps(page)[:number]:
        if block.language == "python":
            _write(block, tmp_path)
    _run(steps(page)[number], tmp_path)


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
