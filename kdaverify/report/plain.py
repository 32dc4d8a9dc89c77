"""Words of others made harmless: names and messages come from the kernels that are judged."""

from __future__ import annotations

from rich.text import Text


def plain(text: str) -> str:
    """The text on one line, with every control sign, and every sign that turns the direction of
    writing, as its code.
    """
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def reported(text: str, style: str = "") -> Text:
    """The same for rich, whose markup it is not taken for; lines stay lines."""
    return Text("\n".join(plain(line) for line in text.split("\n")), style=style)
