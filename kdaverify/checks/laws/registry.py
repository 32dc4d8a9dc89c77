"""Every law by name, and the property that tests one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.canonical import ProblemError
from kdaverify.checks.laws.enlarged import APPENDED_TOKENS, PADDED_KEYS, PADDED_VALUES
from kdaverify.checks.laws.independence import (
    LATER_TOKENS,
    NEIGHBOURS,
    NO_WRITES,
    OTHER_ENTRIES,
    OTHER_HEADS,
    PADDING,
    PREFIX_GRADIENTS,
)
from kdaverify.checks.laws.law import Law
from kdaverify.checks.laws.linearity import LINEARITY
from kdaverify.checks.laws.powers_of_two import (
    NEGATED_KEYS,
    NEGATED_QUERIES,
    NEGATED_VALUES,
    SCALED_OUTPUT,
    SCALED_VALUES,
)
from kdaverify.checks.laws.rearranged import (
    PERMUTED_CHANNELS,
    PERMUTED_HEADS,
    REPEATED_HEADS,
    ROTATED_CHANNELS,
    SHIFTED_GATES,
)
from kdaverify.checks.laws.special_cases import ABSENT_STATE, EQUAL_CHANNELS, NO_DECAY
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.operator import call_operator

LAWS: Final[Mapping[str, Law]] = MappingProxyType(
    {
        law.name: law
        for law in (
            LATER_TOKENS, PREFIX_GRADIENTS, NEIGHBOURS, PADDING, OTHER_HEADS, OTHER_ENTRIES,
            SCALED_VALUES, SCALED_OUTPUT, NEGATED_VALUES, NEGATED_QUERIES, NEGATED_KEYS, NO_WRITES,
            ABSENT_STATE, LINEARITY, NO_DECAY, EQUAL_CHANNELS, REPEATED_HEADS, PADDED_KEYS,
            PADDED_VALUES, PERMUTED_CHANNELS, APPENDED_TOKENS, ROTATED_CHANNELS, SHIFTED_GATES,
            PERMUTED_HEADS,
        )
    }
)  # fmt: skip
"""In the order of math.md 7, those to the bit first."""


def laws(adapter: Adapter, problem: Any, *, law: str) -> list[Outcome]:
    """Tests one law on a problem.

    Args:
        law: one of the operator's.
    Raises:
        ProblemError: no such law.
    """
    known = call_operator(problem.op).laws()
    if law not in known:
        raise ProblemError(f"law: no law named {law!r}; known ones are {', '.join(known)}")
    chosen = known[law]
    reason = chosen.untestable(problem) or next(
        filter(None, map(adapter.supports, chosen.becomes(problem))), None
    )
    return skipped(f"{law}: {reason}") if reason else chosen.check(adapter, problem)
