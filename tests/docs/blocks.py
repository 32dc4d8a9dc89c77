"""Code of the documentation: every block, and every command named in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]))
# A command ends where a comment, a pipe or a second command begins.
_ENDS: Final = re.compile(r"\s+(?:#|\||&&|>|;).*")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        language: after the fence; "" of an indented block.
        settings: title="..." and the like, after the language.
    """

    page: Path
    language: str
    settings: dict[str, str]
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Those of a page, in order."""
    for token in MarkdownIt().parse(page.read_text()):
        if token.type in {"fence", "code_block"}:
            language, *rest = shlex.split(token.info) or [""]
            yield Block(page, language, dict(word.split("=", 1) for word in rest), token.content)


def commands(page: Path, program: str) -> Iterator[str]:
    """Every call of `program` that the page shows, in blocks and in running text."""
    markdown = MarkdownIt()
    shown = [block.text for block in blocks(page)]
    for token in markdown.parse(page.read_text()):
        shown += [child.content for child in token.children or () if child.type == "code_inline"]
    for text in shown:
        for line in text.splitlines():
            call = line.strip().removeprefix("$ ")
            if call.startswith(f"{program} "):
                yield _ENDS.sub("", call)
