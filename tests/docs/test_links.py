"""Every relative link of a page leads to a file, and every anchor to a heading of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from markdown_it import MarkdownIt

from tests.docs.blocks import PAGES, ROOT

LINKED: Final = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "reports").rglob("*.md"))]


def links(page: Path) -> Iterator[str]:
    """Targets of links and pictures that are no address of the web."""
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        for child in token.children or ():
            target = str(child.attrGet("href") or child.attrGet("src") or "")
            if target and not re.match(r"[a-z]+:", target):
                yield target


def anchors(page: Path) -> set[str]:
    """Those of its headings: lower case, no punctuation, a dash for a space."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        for heading in headings
    }


def broken(page: Path) -> list[str]:
    wrong = list[str]()
    for target in links(page):
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, of `it`\n")
    (page := tmp_path / "page.md").write_text(
        "[a](there.md#a-heading-of-it) [b](there.md#no) ![c](gone.svg) [d](https://x.y)\n"
    )
    assert broken(page) == ["there.md#no", "gone.svg"]
