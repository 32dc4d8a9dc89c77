"""One head, sequence or stretch of tokens of another kind than all others: decisions that a launch
makes for all.

Problems sample keys, gates and values of one kind for every head and sequence. A kernel that chose
how to invert the systems of a launch by the mean of their norms was accepted: it had to be the
largest. So was one that chose by the keys of the first chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.copies import BATCH, CHANGED, HEADS, Copies, farthest
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed
from oracles.signature import Role

NUMBER: Final = 65
"""Of heads, or sequences: the mean over them is next to that of those that are alike."""
PLACE: Final = NUMBER // 2
"""Of the one unlike the others: neither the first nor the last, by which a kernel may decide."""
AXES: Final = {"heads": HEADS, "sequences": BATCH}
PLAIN: Final[Mapping[str, Any]] = {
    "B": 1, "H": 1, "HV": 1, "key": "random", "beta": "small", "gate": "slow", "state": "random",
    "value": "normal",
}  # fmt: skip
"""Systems next to the identity, little decay, values about 1: every short cut is right."""
UNLIKE: Final[Mapping[str, Mapping[str, Any]]] = {
    "coherent keys": {"key": "coherent-0.9", "beta": "near-one"},
    "strong gates": {"gate": "bound-20"},
    "large values and states": {"value": "beyond-fp16", "state": "large"},
}
"""By what is other about the one."""
STRETCH: Final = slice(65, 135)
"""Tokens of another kind: no part of the first chunk of 64 and all of the second, or of those of 16
and 32 that lie there."""
TOKENS: Final = 200
"""The last chunk of 64 is as the first."""


@dataclass(frozen=True)
class Unlike:
    """Copies of a call, one of which is replaced.

    Args:
        copies: of the call that is like all others.
        other: the case whose inputs stand in the place of one copy.
        many: the large call.
    """

    copies: Copies
    other: CallRuleCase
    many: Any

    @classmethod
    def of(cls, copies: Copies, other: CallRuleCase) -> Unlike:
        """The copies with another case's inputs in the place of one.

        Raises:
            Unreachable: the conventions of the kernel change them there in another way.
        """
        roles = (Role.TOKEN, Role.STATE)
        signature = other.inputs.signature
        given = signature.tensors(other.inputs, *roles)
        large = signature.tensors(copies.many, *roles)
        many = replace(
            copies.many,
            **{name: copies.with_one(name, large[name], PLACE, x) for name, x in given.items()},
        )
        other.check_part(many, lambda name, x: copies.split(name, x)[PLACE], CHANGED)
        return cls(copies, other, many)

    def judged(self, found: Tensors) -> list[Outcome]:
        """The one, and of all others that which differs most from the first, each the bits of a
        call of it alone, or right.
        """
        copies = {name: self.copies.split(name, x) for name, x in found.items()}
        others = {name: torch.cat((x[:PLACE], x[PLACE + 1 :])) for name, x in copies.items()}
        return [
            *_as_alone(self.other, {name: x[PLACE] for name, x in copies.items()}),
            *_as_alone(self.copies.case, {name: x[farthest(x)] for name, x in others.items()}),
        ]


def _as_alone(case: CallRuleCase, found: Tensors) -> list[Outcome]:
    own = {name: x.contiguous() for name, x in found.items()}
    return same_or_right(case.run(), own, case.judged, f"among {NUMBER}")


def _unlike(case: CallRuleCase) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of all."""
    one, reasons = replace(case, problem=case.beside(**PLAIN)), list[str]()
    found = first_wrong_or_all(
        placed(
            unlike.judged(one.run(unlike.many)),
            f"\n  {said[:-1]} {PLACE} of {NUMBER} has {kind}, the others have none",
        )
        for said, copies in _copies(one, reasons)
        for kind, unlike in _kinds(one, copies, reasons)
    )
    if not found:
        raise Unreachable("; ".join(dict.fromkeys(reasons)) or "it takes none of another kind")
    return found


def _copies(one: CallRuleCase, reasons: list[str]) -> Iterator[tuple[str, Copies]]:
    for said, axes in AXES.items():
        try:
            yield said, Copies.of(one, NUMBER, axes)
        except Unreachable as reason:
            reasons.append(str(reason))


def _kinds(one: CallRuleCase, copies: Copies, reasons: list[str]) -> Iterator[tuple[str, Unlike]]:
    for kind, fields in UNLIKE.items():
        try:
            problem = one.beside(**fields)
            if problem != one.problem:
                yield kind, Unlike.of(copies, replace(one, problem=problem))
        except Unreachable as reason:
            reasons.append(str(reason))


def _stretched(case: CallRuleCase) -> list[Outcome]:
    """A call whose heads have each a stretch of another kind, against exact values."""
    heads = {"T": TOKENS, "H": len(UNLIKE), "HV": len(UNLIKE)}
    plain = replace(case, problem=case.beside(**{**PLAIN, **heads}))
    call, changed = plain.inputs, set[str]()
    for head, (kind, fields) in enumerate(UNLIKE.items()):
        try:
            other = case.beside(**{**PLAIN, **heads, **fields})
        except Unreachable:
            continue
        if other != plain.problem:
            call = _with_stretch(call, other.inputs(), head)
            changed.add(kind)
    if not changed:
        raise Unreachable("it takes none of another kind")
    said = f"\n  tokens {STRETCH.start} to {STRETCH.stop - 1} of a head each: {', '.join(changed)}"
    return placed(plain.judged(plain.run(call), call), said)


def _with_stretch(call: Any, other: Any, head: int) -> Any:
    """The call with another's tokens of the stretch in one head."""
    made = dict[str, torch.Tensor]()
    for name, x in call.signature.tensors(call, Role.TOKEN).items():
        axes = call.signature[name].axes
        place = tuple({"T": STRETCH, "H": head, "HV": head}.get(a, slice(None)) for a in axes)
        made[name] = x.clone()
        made[name][place] = getattr(other, name)[place]
    return replace(call, **made)


RULES: Final = (
    CallRule("one-unlike",
             f"one of {NUMBER} heads, or sequences, returns what it does alone, and so do the"
             " others, where it has coherent keys, strong gates or large values and they have none",
             "a way to invert, an anchor or a scale chosen for a launch by the mean of its heads",
             _unlike, size="tails", packed=False, sequences=True, delta=True, spare=False,
             once=True),
)  # fmt: skip
OF_STRETCHES: Final = (
    CallRule("stretch-unlike",
             f"o and states are exact where {STRETCH.stop - STRETCH.start} tokens behind the first"
             " chunk have coherent keys, strong gates or large values and all others have none",
             "a way to invert, an anchor or a scale chosen by the first or the last chunk",
             _stretched, size="tails", packed=False, sequences=True, delta=True, spare=False,
             once=True),
)  # fmt: skip
