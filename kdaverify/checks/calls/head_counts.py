"""Numbers of heads, or of channels, one power of two after another.

Launches and tiles go by how many heads there are: a model split over eight devices has an eighth of
them. Equal heads return what one does, so that each number costs the kernel's call alone, and they
have chunks enough for a state to be handed over: a port that was wrong for eight heads past its
first chunk was accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.copies import Copies, wide_axis
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_last

COUNTS: Final = (2, 4, 8, 16, 32, 64)
"""Of heads: those of models, and what tensor parallelism leaves of them."""
TOKENS: Final = 150
"""Two chunks of 64 and a tail, three states to hand over in chunks of 32."""


def _counted(case: CallRuleCase) -> Iterator[Copies]:
    """Copies of one head, or of a few channels, in every number that the kernel takes.

    Raises:
        Unreachable: it takes none, or its operator has neither.
    """
    axis, sizes = wide_axis(case), type(case.problem).model_fields
    fields = {"B": 1, "T": TOKENS, **({"H": 1, "HV": 1} if axis == "H" else {})}
    one = case.beside(**{name: size for name, size in fields.items() if name in sizes})
    small, reasons, taken = replace(case, problem=one), dict[str, None](), 0
    for number in COUNTS:
        try:
            copies = Copies.of(small, number, frozenset({axis, "HV"}))
        except Unreachable as reason:
            reasons[str(reason)] = None
            continue
        taken += 1
        yield copies
    if not taken:
        raise Unreachable("; ".join(reasons))


def _forward(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_or_last(copies.checked() for copies in _counted(case))


def _backward(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_or_last(
        [
            replace(outcome, message=f"{outcome.message}\n  of {copies.number} equal heads")
            if outcome.status.rejects
            else outcome
            for outcome in copies.checked_back()
        ]
        for copies in _counted(case)
    )


_rule = partial(CallRule, size="tails", packed=False, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("head-counts", "each of equal heads, or groups of channels, returns what one does alone,"
          f" of {', '.join(map(str, COUNTS))} in turn",
          "another launch or tile for one number of heads, as tensor parallelism leaves them",
          _forward),
    _rule("head-counts-backward", "the same of all gradients", "the same in the backward",
          _backward, backward=True, profile="acceptance"),
)  # fmt: skip
