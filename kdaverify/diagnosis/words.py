"""A diagnosis as a record keeps it, in words, and what they name; read without what makes it."""

from __future__ import annotations

import re
from typing import Final

FITS: Final = "indistinguishable from "
"""How a diagnosis in words begins that names something."""


def names_of(told: str) -> tuple[str, ...]:
    """Of a diagnosis in words, the names of what fits; () where nothing does."""
    found, _, _ = re.sub(r" \([\d.e+-]+ away, .*", "", told, flags=re.DOTALL).partition("; in short: ")
    return tuple(sorted(found.removeprefix(FITS).split(", and from "))) if told.startswith(FITS) else ()
