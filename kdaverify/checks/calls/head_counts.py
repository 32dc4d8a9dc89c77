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
from kdaverify.checks.outcome import Outcome, first_wrong_of
from oracles.signature import Role

COUNTS: Final = (2, 4, 8, 16, 32, 64)
"""Of heads: those of models, and what tensor parallelism leaves of them."""
FEWER: Final = (2, 8, 32)
"""Those of a kernel that is compiled for each: six took 125 s of a GPU's acceptance, there and
back."""
TOKENS: Final = 150
"""Two chunks of 64 and a tail, three states to hand over in chunks of 32."""
LONG: Final = 1100
ELEMENTS: Final = 2**20
"""Many heads of many tokens: a configuration for more than 32 heads of more than 512 tokens rounded
its states, and sigmoids were saved in fp16 from a million elements on. Both were accepted."""


def _of_one(case: CallRuleCase, axis: str, tokens: int) -> CallRuleCase:
    """The case of one head, or a few channels, and so many tokens."""
    fields = {"B": 1, "T": tokens, **({"H": 1, "HV": 1} if axis == "H" else {})}
    sizes = type(case.problem).model_fields
    one = case.beside(**{name: size for name, size in fields.items() if name in sizes})
    return replace(case, problem=one)


def _counted(case: CallRuleCase) -> Iterator[Copies]:
    """Copies of one head, or of a few channels, in every number that the kernel takes.

    Raises:
        Unreachable: it takes none, or its operator has neither.
    """
    axis = wide_axis(case)
    small, reasons, taken = _of_one(case, axis, TOKENS), dict[str, None](), 0
    for number in FEWER if case.adapter.compiled else COUNTS:
        try:
            copies = Copies.of(small, number, frozenset({axis, "HV"}))
        except Unreachable as reason:
            reasons[str(reason)] = None
            continue
        taken += 1
        yield copies
    if not taken:
        raise Unreachable("; ".join(reasons))


def _long(case: CallRuleCase) -> Copies:
    """Copies of a long head, or of channels of a long sequence: one input has a million elements.

    Raises:
        Unreachable: it takes no call as long, or its operator has neither.
    """
    axis = wide_axis(case)
    one = _of_one(case, axis, LONG)
    if getattr(one.problem, "T", 0) < LONG:
        raise Unreachable(f"it takes no sequence of {LONG} tokens")
    rows = one.inputs.signature.tensors(one.inputs, Role.TOKEN).values()
    number = -(-ELEMENTS // max(x.numel() for x in rows))
    return Copies.of(one, number, frozenset({axis, "HV"}))


def _forward(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_of((_said(copies), copies.checked()) for copies in _counted(case))


def _backward(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_of((_said(copies), copies.checked_back()) for copies in _counted(case))


def _said(copies: Copies) -> str:
    return f"{copies.number} heads" if "H" in copies.axes else f"{copies.number} times the channels"


_rule = partial(CallRule, size="tails", packed=False, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("head-counts", "each of equal heads, or groups of channels, returns what one does alone,"
          f" of {', '.join(map(str, COUNTS))} in turn",
          "another launch or tile for one number of heads, as tensor parallelism leaves them",
          _forward),
    _rule("head-counts-backward", "the same of all gradients", "the same in the backward",
          _backward, backward=True, profile="acceptance"),
)  # fmt: skip
OF_LONG: Final = (
    _rule("head-counts-long", f"each of equal heads, or groups of channels, of {LONG:,} tokens, a"
          " million elements in all, returns what one does alone",
          "states in 16 bits in the configuration for large calls",
          lambda case: _long(case).checked()),
    _rule("head-counts-long-backward", "the same of all gradients",
          "values saved for the backward in 16 bits where they are many",
          lambda case: _long(case).checked_back(), backward=True),
)  # fmt: skip
