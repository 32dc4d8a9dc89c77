"""Every block of code in the documentation is run, read or checked by the tool that it is for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Final

import pytest
import yaml

from benchmarks.tolerance_example import example, table
from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract_file import read_contract
from kdaverify.verdicts.waivers import read_waivers
from tests.docs.blocks import PAGES, ROOT, Block, blocks

TUTORIALS: Final = {ROOT / "docs" / name for name in ("tutorial.md", "tutorial_attention.md")}
"""Their blocks are steps of one session: `test_tutorial.py` runs them."""
LANGUAGES: Final = {"python", "toml", "yaml", "console", ""}
"""Indented blocks, and fences without a language, are commands, output or formulas:
`test_commands.py` checks the commands."""
FOUND: Final = [block for page in PAGES if page not in TUTORIALS for block in blocks(page)]


def of(language: str) -> list[Block]:
    return [block for block in FOUND if block.language == language]


def test_every_block_is_of_a_language_that_is_tested() -> None:
    assert {block.language for block in FOUND} <= LANGUAGES


@pytest.mark.parametrize(
    "block", of("python"), ids=lambda block: f"{block.page.name}-{block.text.splitlines()[-1][:20]}"
)
def test_python_runs_and_what_it_decorates_is_an_adapter(block: Block) -> None:
    names = dict[str, object]()
    exec(compile(block.text, block.page.name, "exec"), names)  # noqa: S102 # our own documentation
    assert ("kv.kernel(" in block.text or "@kv.kernel\n" in block.text) == any(
        isinstance(found, Adapter) for found in names.values()
    )


def test_contracts_and_waivers_are_read(tmp_path: Path) -> None:
    read: dict[str, Callable[[Path], object]] = {
        "mine.toml": read_contract,
        "waivers.toml": lambda path: read_waivers(path, date(2026, 11, 1)),
    }
    assert sorted(block.settings["title"] for block in of("toml")) == sorted(read)
    for block in of("toml"):
        (path := tmp_path / block.settings["title"]).write_text(block.text)
        assert read[path.name](path)


def test_workflows_are_yaml_with_a_job() -> None:
    assert of("yaml") and all(yaml.safe_load(block.text)["jobs"] for block in of("yaml"))


def test_the_worked_example_has_the_figures_of_the_code() -> None:
    page = (ROOT / "docs" / "explanation.md").read_text()
    shown = page.partition("<!-- tolerance -->\n")[2].partition("<!-- end -->")[0].splitlines()
    computed = [*table(example())]
    assert len(shown) == len(computed)
    for line, wanted in zip(shown, computed, strict=True):
        for got, figure in zip(line.split(), wanted.split(), strict=True):
            assert got == figure or _value(got) == pytest.approx(_value(figure), rel=0.02), line


def _value(word: str) -> float:
    """The number in a word of the table: another order of sums may move its last digit."""
    return float(word.strip("*:%x") or "nan")
