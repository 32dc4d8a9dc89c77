"""Sizes of problems: columns of records, panels, and what is tried for a smaller problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Fields = Mapping[str, dict[str, Any]]
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


def panel_of(kind: Any, dtype: str, profile: str, smoke: Fields, more: Fields) -> dict[str, Any]:
    """Problems of a kind by name, in one format.

    Args:
        smoke, more: their fields by name: of every profile, and of those beyond smoke.
    """
    chosen = smoke if profile == "smoke" else {**smoke, **more}
    return {name: kind(dtype=dtype, **fields) for name, fields in chosen.items()}


def below(size: int, choices: tuple[int, ...]) -> list[int]:
    """The choices smaller than a size."""
    return [choice for choice in choices if choice < size]


def shrunk(size: int, least: int = 1) -> list[int]:
    """Sizes below one, the smallest first, whose distance to it halves: of a gradient that was
    wrong from 1,089 rows on, steps of one row from 1,100 took all the time.

    Math: least to least + 2, then size - size / 2^n for n = 1, 2, ...
    """
    steps = (size - size // 2**n for n in range(1, size.bit_length()))
    tried = (*range(least, least + 3), *steps)
    return [*dict.fromkeys(count for count in tried if least <= count < size)]
