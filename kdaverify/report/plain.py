"""Words of others made harmless: names and messages come from the kernels that are judged."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text on one line, with every control sign, and every sign that turns the direction of writing, as its code."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)
