"""Findings: wrong answers of released implementations, one Markdown file each, in one form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEVERITIES: Final[Mapping[str, str]] = {
    "high": "wrong finite numbers, or NaN, for inputs that training or serving produces",
    "medium": "wrong numbers for inputs that the interface permits and models rarely produce",
    "low": "wrong numbers that the caller can see, or in an entry point that no model uses",
}
"""In order: what each means for a user."""
FIELDS: Final = (
    "package", "implementation", "severity", "input", "exact", "got", "mechanism", "consequence",
    "upstream", "replay",
)  # fmt: skip
"""The rows of the table that a finding begins with, in this order."""
RELEASES: Final = "releases"
"""A row that may be there: RELEASE: what its reproduction gave; RELEASE: and so on."""
MOST_LINES: Final = 15
"""Of a reproduction: what fits into an issue and is read there."""
_TITLE, _ROW = re.compile(r"# (.+)"), re.compile(r"\| *(.+?) *\| *(.*?) *\|$")
_CODE: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PRINTS: Final = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME: Final = re.compile(r"`([^`]+)`")


class FindingError(Exception):
    """A file is no finding; the message names the file, what was wanted and what came."""


@dataclass(frozen=True)
class Finding:
    """One wrong answer of a released implementation.

    Args:
        name: of the file, without its ending.
        title: what is wrong, in a line.
        fields: the text of each of FIELDS, and of RELEASES where it was run on several.
        reproduction: a program without kdaverify that prints the wrong and the exact value.
        prints: what it printed; "" where it was not run in this form.
    """

    name: str
    title: str
    fields: Mapping[str, str]
    reproduction: str
    prints: str = ""

    @property
    def severity(self) -> str:
        return self.fields["severity"].partition(":")[0]

    @property
    def implementations(self) -> tuple[str, ...]:
        """The implementations that it is about, by the names that `--impl` takes."""
        return tuple(_NAME.findall(self.fields["implementation"]))

    @property
    def releases(self) -> tuple[tuple[str, str], ...]:
        """Releases of the package on which it was looked for, and what was found on each."""
        parts = (one.partition(": ") for one in self.fields.get(RELEASES, "").split("; "))
        return tuple((release, result) for release, _, result in parts if result)


def read_findings(folder: Path) -> tuple[Finding, ...]:
    """The findings of a folder, the most severe first.

    Raises:
        FindingError: a file is no finding.
    """
    pages = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
    order = [*SEVERITIES]
    return tuple(
        sorted(map(read_finding, pages), key=lambda one: (order.index(one.severity), one.name))
    )


def read_finding(path: Path) -> Finding:
    """One finding.

    Raises:
        FindingError: a field or the reproduction is missing, or is not in its form.
    """
    text = path.read_text(encoding="utf-8")
    title, code, prints = _TITLE.match(text), _CODE.search(text), _PRINTS.search(text)
    rows = (_ROW.match(line) for line in text.splitlines())
    fields = {row[1]: row[2] for row in rows if row and row[1] in (*FIELDS, RELEASES)}
    if title is None:
        raise FindingError(f"{path}: wanted a title, # TITLE, in the first line")
    if absent := [name for name in FIELDS if not fields.get(name)]:
        raise FindingError(f"{path}: wanted a row | {absent[0]} | ... |, got none; add it")
    program, printed = ("" if part is None else part[1] for part in (code, prints))
    found = Finding(path.stem, title[1], fields, program, printed)
    if found.severity not in SEVERITIES:
        wanted = ", ".join(SEVERITIES)
        raise FindingError(f"{path}: severity: wanted {wanted}, got {found.severity!r}")
    lines = len(found.reproduction.splitlines())
    if not 0 < lines <= MOST_LINES:
        raise FindingError(
            f"{path}: wanted a reproduction of 1 to {MOST_LINES} lines of Python, got {lines}"
        )
    return found


def index(findings: Iterable[Finding]) -> str:
    """The README of a folder of findings, by severity."""
    rows = [
        f"| {one.severity} | [{one.title}]({one.name}.md) | {one.fields['package']} |"
        f" {', '.join(f'`{name}`' for name in one.implementations)} |"
        for one in findings
    ]
    meanings = [f"- {name}: {meaning}" for name, meaning in SEVERITIES.items()]
    return "\n".join(
        (
            "# Findings",
            "",
            "Wrong answers of released implementations, the most severe first. Each page has the",
            "exact value, the mechanism, and a reproduction that needs no kdaverify.",
            "",
            *meanings,
            "",
            "| severity | finding | package | implementation |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )
