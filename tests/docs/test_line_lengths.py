"""Lines of the documentation are at most 100 characters wide, but for tables and for what cannot be
broken; lines of the code are without exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import PAGES, ROOT

WIDE: Final = 100
WRAPPED: Final = (
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("reports/findings/*.md")),
)
_FENCE: Final = re.compile(r"\s*(```|~~~)")


def too_wide(text: str) -> Iterator[str]:
    """Lines of prose that a space would break, and that go on beyond the width."""
    fenced = False
    for line in text.splitlines():
        fenced ^= bool(_FENCE.match(line))
        code = fenced or line.startswith("    ")
        table = line.lstrip().startswith(("|", "#", "<", "!["))
        if len(line) > WIDE and not (code or table) and " " in line.strip()[:WIDE]:
            unbroken = line.rstrip().rpartition(" ")[0]
            if len(unbroken) > WIDE or "](" not in line:
                yield line


def code() -> Iterator[Path]:
    """Every file of Python that is ours: reproductions of findings are not."""
    for folder in ("kdaverify", "oracles", "suites", "tests", "benchmarks", ".ci"):
        yield from (ROOT / folder).rglob("*.py")


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: page.name)
def test_lines_are_at_most_100_characters(page: Path) -> None:
    assert [*too_wide(page.read_text())] == []


def test_lines_of_code_are_at_most_100_characters() -> None:
    """Those with a pragma, too, which ruff leaves out."""
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in code()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > WIDE
    ]
    assert wide == []


def test_a_line_that_is_too_wide_is_found_and_a_table_and_code_are_not() -> None:
    wide = "word " * 21
    assert [*too_wide(f"{wide}\n| {wide} |\n    {wide}\n```\n{wide}\n```\n")] == [wide]
