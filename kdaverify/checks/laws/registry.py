"""Every law by name, and the property that tests one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.canonical import ProblemError
from kdaverify.checks.laws.absent_state import ABSENT_STATE
from kdaverify.checks.laws.appended_tokens import APPENDED_TOKENS
from kdaverify.checks.laws.equal_channels import EQUAL_CHANNELS
from kdaverify.checks.laws.later_tokens import LATER_TOKENS
from kdaverify.checks.laws.law import Law
from kdaverify.checks.laws.linearity import LINEARITY
from kdaverify.checks.laws.negated_keys import NEGATED_KEYS
from kdaverify.checks.laws.negated_queries import NEGATED_QUERIES
from kdaverify.checks.laws.negated_values import NEGATED_VALUES
from kdaverify.checks.laws.neighbours import NEIGHBOURS
from kdaverify.checks.laws.no_decay import NO_DECAY
from kdaverify.checks.laws.no_writes import NO_WRITES
from kdaverify.checks.laws.other_entries import OTHER_ENTRIES
from kdaverify.checks.laws.other_heads import OTHER_HEADS
from kdaverify.checks.laws.padded_keys import PADDED_KEYS
from kdaverify.checks.laws.padded_values import PADDED_VALUES
from kdaverify.checks.laws.padding import PADDING
from kdaverify.checks.laws.permuted_channels import PERMUTED_CHANNELS
from kdaverify.checks.laws.permuted_heads import PERMUTED_HEADS
from kdaverify.checks.laws.prefix_gradients import PREFIX_GRADIENTS
from kdaverify.checks.laws.repeated_heads import REPEATED_HEADS
from kdaverify.checks.laws.rotated_channels import ROTATED_CHANNELS
from kdaverify.checks.laws.scaled_output import SCALED_OUTPUT
from kdaverify.checks.laws.scaled_values import SCALED_VALUES
from kdaverify.checks.laws.shifted_gates import SHIFTED_GATES
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.operator import call_operator

LAWS: Final[Mapping[str, Law]] = MappingProxyType(
    {
        law.name: law
        for law in (
            LATER_TOKENS,
            PREFIX_GRADIENTS,
            NEIGHBOURS,
            PADDING,
            OTHER_HEADS,
            OTHER_ENTRIES,
            SCALED_VALUES,
            SCALED_OUTPUT,
            NEGATED_VALUES,
            NEGATED_QUERIES,
            NEGATED_KEYS,
            NO_WRITES,
            ABSENT_STATE,
            LINEARITY,
            NO_DECAY,
            EQUAL_CHANNELS,
            REPEATED_HEADS,
            PADDED_KEYS,
            PADDED_VALUES,
            PERMUTED_CHANNELS,
            APPENDED_TOKENS,
            ROTATED_CHANNELS,
            SHIFTED_GATES,
            PERMUTED_HEADS,
        )
    }
)
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
