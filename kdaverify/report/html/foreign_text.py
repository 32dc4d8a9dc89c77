"""Text of others made fit for a page, or for Markdown."""

from __future__ import annotations

import re
from typing import Any, Final

from markupsafe import Markup

# Controls but tab and line feed, marks that change the direction of text, invisible ones, and
# halves of surrogate pairs.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(value: Any) -> Any:
    """What the template prints; what is already markup stays."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return UNSEEN.sub(_name, value)
    return value


def _name(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"


MEANT: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&-])")
LINKED: Final = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Where forges find mentions, numbers of issues and addresses, whatever is escaped."""
APART: Final = "\u200b"
MOST: Final = 300


def plain(value: Any) -> str:
    """The text on one line, its marks escaped: no link, embedding, mention or format."""
    text = " ".join(str(visible(value)).split())
    short = text if len(text) <= MOST else f"{text[:MOST]} ..."
    return MEANT.sub(r"\\\1", LINKED.sub(APART, short))


def code(value: Any) -> str:
    """The text as code on one line, whatever ticks are in it."""
    text = " ".join(str(visible(value)).split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
