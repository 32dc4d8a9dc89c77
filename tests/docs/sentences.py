"""The sentences of a page: its running text, without code, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

# A sentence ends before a space and a capital letter or a digit; initials and abbreviations are no
# ends.
_END: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=[A-Z0-9`\"'(*])|(?<=:)\s*$")


def sentences(page: Path) -> Iterator[str]:
    """Every sentence of paragraphs and lists; a span of code counts as one word."""
    parser = MarkdownIt().enable("table")
    inside = [0]
    for token in parser.parse(page.read_text()):
        if token.type in {"table_open", "heading_open"}:
            inside.append(1)
        elif token.type in {"table_close", "heading_close"}:
            inside.pop()
        elif token.type == "inline" and len(inside) == 1:
            text = "".join(_plain(child.type, child.content) for child in token.children or ())
            yield from filter(None, (part.strip() for part in _END.split(text)))


def _plain(kind: str, content: str) -> str:
    if kind in {"softbreak", "hardbreak"}:
        return " "
    return "`code`" if kind == "code_inline" else content


def words(sentence: str) -> int:
    """Words, and numbers; signs of a formula are none."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())
