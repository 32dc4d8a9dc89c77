"""Words of others made harmless: names and messages come from the kernels that are judged."""

from __future__ import annotations

from rich.text import Text


def plain(text: str) -> str:
    """The text on one line, control signs and signs of writing direction as codes."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def reported(text: str, style: str = "") -> Text:
    """The same for rich, whose markup it is not taken for; lines stay lines."""
    return Text("\n".join(plain(line) for line in text.split("\n")), style=style)
