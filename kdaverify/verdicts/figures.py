"""Figures of a row that are read off its words:
the sizes of its problem, the precision of its oracle.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from kdaverify.verdicts.verdict import Verdict

SIZES: Final = ("B", "T", "N", "H", "HV", "K", "V")
DOUBLE: Final = 53
"""Bits of a float64."""

_BITS: Final = re.compile(r"(\d+) bits\b")


def sizes_of(problem: str) -> dict[str, int]:
    """The sizes that the JSON of a problem states, and the number of its sequences.

    Returns:
        By axis letter; nothing for what is no problem.
    """
    tested: Any = json.loads(problem) if problem else {}
    found = {axis: tested[axis] for axis in SIZES if isinstance(tested.get(axis), int)}
    if "B" in found:
        lengths = tested.get("lengths")
        found["N"] = found["B"] if lengths is None else len(lengths)
    return found


def bits_of(oracle: str) -> int | None:
    """The precision that an oracle's description states; None where it states none."""
    found = _BITS.search(oracle)
    if found is not None:
        return int(found[1])
    return DOUBLE if oracle.startswith("float64") else None


def completed(verdict: Verdict) -> Verdict:
    """A verdict of version 1 with the figures that it did not have; any other as it is."""
    if verdict.schema_version > 1:
        return verdict
    return verdict.model_copy(
        update={**sizes_of(verdict.problem), "oracle_bits": bits_of(verdict.oracle)}
    )
