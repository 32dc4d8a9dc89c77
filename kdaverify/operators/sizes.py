"""Sizes that are tried when a failing problem is made smaller."""

from __future__ import annotations

from typing import Final

WIDTHS: Final = (1, 2, 4, 8, 16, 32)


def below(size: int, choices: tuple[int, ...]) -> list[int]:
    """The choices smaller than a size."""
    return [choice for choice in choices if choice < size]
