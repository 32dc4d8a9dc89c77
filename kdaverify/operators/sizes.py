"""Sizes of problems: columns of records, and what is tried for a smaller problem."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel

WIDTHS: Final = (1, 2, 4, 8, 16, 32)


class RecordedSizes(BaseModel):
    """The sizes of a problem, by the axis letters of all operators; None: it states none.

    Args:
        B, T, N, H, HV, K, V: batch entries, tokens, sequences, key heads, value heads, widths.
    """

    B: int | None = None
    T: int | None = None
    N: int | None = None
    H: int | None = None
    HV: int | None = None
    K: int | None = None
    V: int | None = None


def sizes_of(problem: str) -> dict[str, int]:
    """The sizes that the JSON of a problem states, and the number of its sequences.

    Returns:
        By axis letter; nothing for what is no problem.
    """
    tested: Any = json.loads(problem) if problem else {}
    sizes = RecordedSizes.model_fields
    found = {axis: tested[axis] for axis in sizes if isinstance(tested.get(axis), int)}
    if "B" in found:
        lengths = tested.get("lengths")
        found["N"] = found["B"] if lengths is None else len(lengths)
    return found


def below(size: int, choices: tuple[int, ...]) -> list[int]:
    """The choices smaller than a size."""
    return [choice for choice in choices if choice < size]
