"""A call whose first tokens are those of the call before, as requests of a server often are.

A server keeps the state behind what it has read, and continues from there where a request begins
alike. It must continue from the state behind the tokens that both have: a port that continued from
the end of the earlier request was accepted, since no two calls under no_grad began alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.calls.autograd import recorded, unconverted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role

FIRST: Final = 144
"""Tokens of the first call: two chunks of 64, and a tail of a chunk of 16."""
LATER: Final = ((48, 70), (32, 144), (64, 150), (96, 96), (144, 150))
"""Tokens that a later call shares with it, and how many it has: it differs and is shorter, as long
or longer; it is cut; it goes on."""
FIRST_PACK: Final = (144, 0, 70)
LATER_PACKS: Final = ((48, (70, 0, 70)), (64, (150, 0, 66)))
"""The same of packs: tokens that sequences share with those of the first, and their lengths."""
PLAIN: Final = {"state": "absent", "H": 1, "HV": 1}
"""Calls begin without a state: with a given one it is that state that each would continue from."""


@dataclass(frozen=True)
class LaterCall:
    """A call that begins as an earlier one.

    Args:
        case: of its problem.
        inputs: the call.
        said: when it is made, in words.
    """

    case: CallRuleCase
    inputs: Any
    said: str

    @classmethod
    def of(cls, first: CallRuleCase, case: CallRuleCase, shared: int) -> LaterCall:
        """The call of `case`, whose sequences have the first tokens of those of `first`."""
        tokens, before = (x.signature.tensors(x, Role.TOKEN) for x in (case.inputs, first.inputs))
        spans, spans_before = (_spans(one.problem) for one in (case, first))
        for (start, length), (other, length_before) in zip(spans, spans_before, strict=True):
            count = min(shared, length, length_before)
            tokens = {
                name: _replaced(x, start, before[name][:, other : other + count])
                for name, x in tokens.items()
            }
        lengths = "+".join(str(length) for _, length in spans)
        said = f"of {lengths} tokens, after a call that had the first {shared}"
        return cls(case, replace(case.inputs, **tokens), said)

    def alone(self) -> Tensors | None:
        """Its outputs where autograd records it; None of a kernel without a graph of torch.

        A kernel keeps nothing then that a call under no_grad could continue from.
        """
        try:
            call = recorded(self.case, unconverted(self.case), self.inputs)
        except Unreachable:
            return None
        return {name: output.detach() for name, output in call.outputs.items()}

    def judged(self, plain: Tensors | None) -> list[Outcome]:
        """Its outcomes under no_grad: the bits of `plain`, or right ones."""
        # what is judged outside the kernel's process is of another problem: inputs are named
        judge = partial(self.case.judged, inputs=self.inputs)
        found = _without_gradients(self.case, self.inputs)
        return judge(found) if plain is None else same_or_right(plain, found, judge, self.said)


def _spans(problem: Any) -> list[tuple[int, int]]:
    """First row and number of tokens of each sequence."""
    lengths = (problem.T,) if problem.lengths is None else problem.lengths
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [(end - length, length) for end, length in zip(ends, lengths, strict=True)]


def _replaced(x: Tensor, start: int, rows: Tensor) -> Tensor:
    return torch.cat((x[:, :start], rows, x[:, start + rows.shape[1] :]), dim=1)


def _without_gradients(case: CallRuleCase, inputs: Any) -> Tensors:
    with torch.no_grad():
        return case.run(inputs)


def _alike(
    case: CallRuleCase, first: Mapping[str, Any], later: Iterable[tuple[int, Mapping[str, Any]]]
) -> list[Outcome]:
    before = replace(case, problem=_problem(case, first))
    found = list[Outcome]()
    for call in _calls(before, later):
        alone = call.alone()
        _without_gradients(before, before.inputs)
        found += call.judged(alone)
    return found


def _calls(
    first: CallRuleCase, later: Iterable[tuple[int, Mapping[str, Any]]]
) -> Iterator[LaterCall]:
    """Those that the kernel takes.

    Raises:
        Unreachable: it takes none.
    """
    none, reasons = True, list[str]()
    for shared, fields in later:
        try:
            other = _problem(first, {**fields, "seed": first.problem.seed + 1})
        except Unreachable as reason:
            reasons.append(str(reason))
            continue
        none = False
        yield LaterCall.of(first, replace(first, problem=other), shared)
    if none:
        raise Unreachable("; ".join(dict.fromkeys(reasons)))


def _problem(case: CallRuleCase, fields: Mapping[str, Any]) -> Any:
    known, wanted = type(case.problem).model_fields, {**PLAIN, **fields}
    return case.beside(**{name: value for name, value in wanted.items() if name in known})


def _sequence(case: CallRuleCase) -> list[Outcome]:
    later = [(shared, {"B": 1, "T": tokens}) for shared, tokens in LATER]
    return _alike(case, {"B": 1, "T": FIRST}, later)


def _pack(case: CallRuleCase) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    later = [(shared, _packed(lengths)) for shared, lengths in LATER_PACKS]
    return _alike(case, _packed(FIRST_PACK), later)


def _packed(lengths: tuple[int, ...]) -> dict[str, Any]:
    return {"lengths": lengths, "T": sum(lengths)}


_rule = partial(
    CallRule, size="tails", sequences=True, states=True, spare=False, inside=True, costly=True,
    once=True,
)  # fmt: skip
RULES: Final = (
    _rule("same-prefix", "a call under no_grad does not depend on an earlier one that began with"
          " the same tokens",
          "states kept for requests that begin alike, and read behind other tokens than theirs",
          _sequence, packed=False),
    _rule("same-prefix-packed", "the same of packs",
          "the same in packs whose sequences begin alike", _pack),
)  # fmt: skip
