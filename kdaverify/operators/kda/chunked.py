"""Chunks under which a failing case conforms of a kernel that declares a recurrence, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import Contract
from kdaverify.operators.admitted import fails, passes, under
from oracles.row_norm import GIVEN

if TYPE_CHECKING:
    from kdaverify.diagnosis.question import PropertyCase

USUAL: Final = (16, 64)
"""Tokens of a chunk in kernels in use."""


def in_chunks(case: PropertyCase, judged: Adapter, *, until: float) -> str:
    """The chunks under whose contract a case passes, as a sentence; "" if it passes as declared, or
    under none.

    The steps of a token of a delta product, solved for together, are a chunk of so many tokens of
    the delta rule: a right port of them, declared as nothing, was rejected at 1.1 to 1.4 times its
    tolerance.

    Args:
        until: of the monotonic clock; what is begun is ended.
    """
    own = judged.contract(case.problem.dtype)
    if own.form != "recurrent" or own.backward is not None or not fails(case, judged):
        return ""
    for contract in _chunks(own, getattr(judged, "steps", 1)):
        if time.monotonic() < until and passes(case, under(judged, contract)):
            plain = replace(contract, gate="log", beta="value", qk=GIVEN)
            return (
                f"within the tolerance of {plain.name}: a kernel that solves for several steps or"
                " tokens together declares that contract"
            )
    return ""


def _chunks(own: Contract, steps: int) -> Iterator[Contract]:
    """The declared formats in chunks; of a delta product in those of a token, of its `steps`."""
    for size in (steps,) if steps > 1 else USUAL:
        yield replace(own, form="chunk", chunk_size=size)
