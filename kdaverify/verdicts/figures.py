"""The precision of an oracle, read off its description, and rows of older versions completed."""

from __future__ import annotations

import re
from typing import Final

from kdaverify.operators.sizes import sizes_of
from kdaverify.verdicts.verdict import Verdict

DOUBLE: Final = 53
"""Bits of a float64."""

_BITS: Final = re.compile(r"(\d+) bits\b")


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
