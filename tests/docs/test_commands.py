"""What the documentation has people type exists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kdaverify.cli.app import app
from tests.docs.blocks import PAGES, ROOT, blocks, commands


def _unknown(call: str) -> list[str]:
    """The words of a call that the command line does not know: commands and options."""
    found, words = typer.main.get_command(app), call.split()[1:]
    while words and (commands_of := getattr(found, "commands", None)):
        if words[0] not in commands_of:
            return words[:1]
        found = commands_of[words.pop(0)]
    known = {
        option
        for parameter in found.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help"}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_has_these_options(page: Path) -> None:
    assert {
        call: unknown for call in commands(page, "kdaverify") if (unknown := _unknown(call))
    } == {}


def test_an_unknown_command_or_option_is_seen() -> None:
    assert _unknown("kdaverify verfy --impl x") == ["verfy"]
    assert _unknown("kdaverify verify --imp x") == ["--imp"]
    assert _unknown("kdaverify contracts show NAME --toml") == []


def _calls(command: Any, *words: str) -> list[tuple[str, ...]]:
    """Every command, as it is typed."""
    below = getattr(command, "commands", {})
    return [call for name in below for call in _calls(below[name], *words, name)] or [words]


@pytest.mark.parametrize("call", _calls(typer.main.get_command(app)), ids=" ".join)
def test_help_fits_in_80_columns_and_has_an_example(call: tuple[str, ...]) -> None:
    columns = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    shown = CliRunner().invoke(app, [*call, "--help"], env=columns).output
    assert [line for line in shown.splitlines() if "\N{HORIZONTAL ELLIPSIS}" in line] == []
    assert f"kdaverify {' '.join(call)} " in shown.partition("Usage:")[2].partition("\n")[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_benchmark_and_suite_shown_exists(page: Path) -> None:
    modules = [
        call.split()[2]
        for call in commands(page, "python -m")
        if call.split()[2].startswith("benchmarks")
    ]
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    suites = [
        word.partition("::")[0]
        for call in commands(page, "pytest")
        for word in call.split()[1:]
        if word.endswith(".py")
    ]
    assert [path for path in suites if "/" in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, page.name, "exec")


def test_what_an_option_is_begins_with_a_noun() -> None:
    rows = [
        line.strip("| ").split(" | ")[-1]
        for line in (ROOT / "docs" / "commands.md").read_text().splitlines()
        if line.startswith("| `-")
    ]
    begins = ("of ", "whose ", "which ", "after which ", "whether it ")
    assert len(rows) > 100 and [said for said in rows if said.startswith(begins)] == []
