"""Text of others inside Markdown."""

from __future__ import annotations

import re
from typing import Any, Final

from kdaverify.report.html.visible import visible

MEANT: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&-])")
LINKED: Final = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Where forges find mentions, numbers of issues and addresses, whatever is escaped."""
APART: Final = "\u200b"
MOST: Final = 300


def plain(value: Any) -> str:
    """The text on one line, its marks escaped, so that nothing in it links,
    embeds, mentions or formats.
    """
    text = " ".join(str(visible(value)).split())
    short = text if len(text) <= MOST else f"{text[:MOST]} ..."
    return MEANT.sub(r"\\\1", LINKED.sub(APART, short))


def code(value: Any) -> str:
    """The text as code on one line, whatever ticks are in it."""
    text = " ".join(str(visible(value)).split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
