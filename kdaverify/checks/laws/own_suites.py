"""Laws that are asked by a suite of their own, for `kdaverify list laws`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Suite:
    """What a suite asks that is a law; fields as those of `Law`, the name is the property's."""

    name: str
    statement: str
    section: str
    exists_for: str


OWN_SUITES: Final = (
    Suite(
        "causality",
        "every later token replaced, gates too: o before it stays within its budget",
        "7, law 1",
        "anchors, masks and overflow behind a mask that reach back (A2, A16, CS2)",
    ),
    Suite(
        "resume",
        "a run cut anywhere, in chunks or single tokens, is the uncut run",
        "7, law 2",
        "partial chunks, hand-over and layout of the state, the decode entry point (H8, S8, S12, DESIGN-b)",
    ),
    Suite(
        "packing",
        "sequences give the same packed, alone, and in a pack of another order",
        "7, law 3",
        "offsets, empty sequences, order (V1, V4, V10)",
    ),
    Suite(
        "options",
        "chunk size, recompute, optional outputs, in-kernel gates and other entry points give what the plain call gives",
        "7, law 4",
        "code behind one option alone (H11, O3, X7)",
    ),
    Suite(
        "cotangent_linearity",
        "gradients are linear in the cotangents, to the bit for powers of two, and 0 for 0",
        "7, law 13",
        "terms of the backward without a cotangent, clamps, thresholds (B24, B25)",
    ),
    Suite(
        "self_consistency",
        "the backward is the derivative of the kernel's own forward",
        "5",
        "gradients of another forward than the kernel's (B2, B3, GA2)",
    ),
    Suite(
        "stages",
        "the tensors a kernel saves fit each other: o = scale qg h + Aqk v_new, v_new = u - w h, R (I + Akk) = I",
        "3",
        "intermediates of another layout, row or factor than the next stage reads (H10, DESIGN-c)",
    ),
)
