"""Rows of q and k that the kernel normalises are of any length: of unit rows nothing changes.

All other tests multiply them by 8 at most, so that x is found again from the exact unit row. A
kernel that clamped their sum of squares to the range of fp16 was accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.row_norm import LONG


def _long(case: CallRuleCase) -> list[Outcome]:
    conventions = case.adapter.conventions
    if conventions.norm is None:
        raise Unreachable("it takes rows as they are")
    adapter = case.adapter.redeclared(replace(conventions, row_powers=LONG))
    if adapter is None:
        raise Unreachable("its conventions are fixed")
    longer = replace(case, adapter=adapter)
    return longer.judged(longer.run())


RULES: Final = (
    CallRule("long-rows", f"rows of q and k of norms up to 2^{max(LONG)} are normalised too",
             "sums of squares that are kept or clamped in fp16, which holds 65,504", _long,
             packed=False, sequences=True, normalised=True),
)  # fmt: skip
