"""Text of others made fit for a page: what would be invisible, or would turn the text around it, is
shown as what it is.
"""

from __future__ import annotations

import re
from typing import Any, Final

from markupsafe import Markup

# Controls but tab and line feed, marks that change the direction of text, invisible ones, and
# halves of surrogate pairs.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(value: Any) -> Any:
    """What the template prints; what is already markup stays."""
    return (
        UNSEEN.sub(_name, value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def _name(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"
