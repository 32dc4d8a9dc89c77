"""What a person reads: string literals, docstrings, comments, templates and pages, each with its
place.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.blocks import ROOT

# Names of records, options and files are no prose: a word alone, or words joined by anything but a
# space.
_NAME: Final = re.compile(r"\S*")
_WORD: Final = re.compile(r"\A-*\w+(?:-\w+)*\Z")
# Names in prose: spans of code, arguments that a docstring describes or a source passes, and what a
# template computes.
_CODE: Final = re.compile(
    r"`[^`\n]*`|^ +\w+(?:, \w+)*:(?= )|; \w+(?:, \w+)*:(?= )|{{.*?}}|{%.*?%}|<[^>\n]*>"
    r"|\b\w+=(?=[('])",
    re.MULTILINE | re.DOTALL,
)
_PAGES: Final = (
    *("docs/*.md", "reports/*.md", "reports/findings/*.md", "*.md"),
    *("Makefile", "pyproject.toml", ".pre-commit-config.yaml"),
)
_TEMPLATES: Final = ("*.html", "*.md", "*.ini", "*.toml")
HISTORY: Final = "CHANGELOG.md"
"""Quotes what was written before."""
QUOTED: Final = "test_words.py"
"""Its literals are the old words."""


@dataclass(frozen=True)
class Passage:
    """A piece of text and where it is.

    Args:
        file: relative to the repository.
        line: where the text begins, from 1.
    """

    file: str
    line: int
    text: str


def passages() -> Iterator[Passage]:
    """All of the package, the suites, the oracles, tests, benchmarks and the documentation."""
    for path in modules():
        read = docstrings if path.name == QUOTED else literals
        yield from read(_name(path), path.read_text())
        yield from comments(_name(path), path.read_text())
    for folder in ("kdaverify", "oracles", "suites"):
        for pattern in _TEMPLATES:
            yield from (
                page(_name(path), path.read_text())
                for path in sorted((ROOT / folder).rglob(pattern))
            )
    for pattern in _PAGES:
        yield from (
            page(_name(path), path.read_text())
            for path in sorted(ROOT.glob(pattern))
            if path.name != HISTORY
        )


def modules() -> Iterator[Path]:
    """Every module, tests and benchmarks among them."""
    for folder in ("kdaverify", "oracles", "suites", "tests", "benchmarks"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def literals(file: str, source: str) -> Iterator[Passage]:
    """Every string literal and docstring of a module that is more than a name."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not _NAME.fullmatch(node.value.strip())
        ):
            yield Passage(file, node.lineno, _CODE.sub("", node.value))


def docstrings(file: str, source: str) -> Iterator[Passage]:
    """Those of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield Passage(file, node.body[0].lineno, _CODE.sub("", text))


def comments(file: str, source: str) -> Iterator[Passage]:
    """Every comment of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(file, token.start[0], _CODE.sub("", token.string))


def names(source: str) -> Iterator[str]:
    """What a module defines: functions, classes, arguments, and variables that are assigned."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def keys(source: str) -> Iterator[str]:
    """Literals that are a name: of a field, a column, an option, a kind."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _WORD.findall(node.value)


def page(file: str, text: str) -> Passage:
    """A page, or a template, without the names in it."""
    return Passage(file, 1, _CODE.sub("", text))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
