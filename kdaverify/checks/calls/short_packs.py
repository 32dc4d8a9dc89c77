"""Packs of over a thousand sequences of a few tokens each.

Tables of a pack have an entry for each sequence that has tokens, or for each of its chunks. A pack
of short sequences has as many entries as tables hold at the price of two thousand tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.copies import PACK, Copies
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome

LENGTHS: Final = (1, 0, 3, 2, 0)
"""Of one copy: odd numbers of sequences and of those with tokens, so that an index that is cut to
some bits is that of another one."""
SEQUENCES: Final = 1100
"""With tokens: more than a table of 1,024 holds."""


def _copies(case: CallRuleCase) -> Copies:
    """The copies of a short pack.

    Raises:
        Unreachable: the kernel takes no packs, or none of such sequences.
    """
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    one = replace(case, problem=case.beside(lengths=LENGTHS, T=sum(LENGTHS)))
    with_tokens = sum(length > 0 for length in one.problem.lengths)
    return Copies.of(one, -(-SEQUENCES // with_tokens), PACK)


def _forward(case: CallRuleCase) -> list[Outcome]:
    """After a call with one offset in the middle moved: torch prints the first and last three of
    them, and a port kept what it made of offsets by their text.
    """
    copies = _copies(case)
    offsets = copies.many.cu_seqlens
    # the first offset past the middle with room behind it
    middle = int((offsets.diff()[len(offsets) // 2 :] > 1).nonzero()[0]) + len(offsets) // 2
    moved = offsets.clone()
    moved[middle] += 1
    copies.case.run(replace(copies.many, cu_seqlens=moved))
    return copies.checked()


def _backward(case: CallRuleCase) -> list[Outcome]:
    return _copies(case).checked_back()


_rule = partial(CallRule, size="tails", sequences=True, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("copies-short", f"each of copies of a pack of short sequences, {SEQUENCES:,} with tokens"
          " in all, returns what one does alone",
          "tables of 1,024 sequences that have tokens, or of their chunks", _forward),
    _rule("copies-short-backward", "the same of all gradients", "the same in the backward",
          _backward, backward=True, profile="acceptance"),
)  # fmt: skip
