"""A pack behind one long sequence: each of its sequences has what it has without it.

What a kernel keeps of a sequence, a state for each of so many tokens, is counted in its forward and
again in its backward. They differ, for all sequences behind, where a length is a whole multiple: a
port that kept length // 2048 + 1 states in one and ceil(length / 2048) in the other was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role

TOKENS: Final = 4096
"""Of the sequence in front: a multiple of every power of two that kernels count tokens by."""
ALONG: Final = {"T": TOKENS, "N": 1}
"""What of an axis belongs to that sequence."""


@dataclass(frozen=True)
class PackBehind:
    """A pack, and a call of it with a long sequence in front.

    Args:
        case: of the pack alone.
        whole: the call of both.
    """

    case: CallRuleCase
    whole: Any

    @classmethod
    def of(cls, case: CallRuleCase) -> PackBehind:
        """The pack of a case behind the sequence.

        Raises:
            Unreachable: the kernel takes no such pack, or reads it in another way there.
        """
        if is_interpreted(case.adapter):
            raise Unreachable(f"an interpreter would take minutes over {TOKENS:,} tokens")
        if case.problem.lengths is None:
            raise Unreachable("it takes no packs")
        lengths = (TOKENS, *case.problem.lengths)
        problem = case.beside(lengths=lengths, T=TOKENS + case.problem.T)
        if problem.lengths != lengths:
            raise Unreachable(f"it takes no sequence of {TOKENS:,} tokens in front")
        found = cls(case, problem.inputs())
        roles, signature = (Role.TOKEN, Role.STATE), case.inputs.signature
        own = signature.tensors(case.inputs, *roles)
        large = signature.tensors(found.whole, *roles, Role.PARAMETER)
        behind = {name: found.with_own(name, large[name], x) for name, x in own.items()}
        parameters = signature.tensors(case.inputs, Role.PARAMETER)
        found = cls(case, replace(found.whole, **behind, **parameters))
        changed = "its conventions change the pack in another way there"
        case.check_part(found.whole, found.own, changed)
        return found

    def _start(self, name: str) -> tuple[int, int] | None:
        """Axis and place at which the pack's own part of a tensor begins; None: all is its own."""
        axes = self.case.inputs.signature[name].axes
        return next(((at, ALONG[axis]) for at, axis in enumerate(axes) if axis in ALONG), None)

    def own(self, name: str, tensor: Tensor) -> Tensor:
        """What of an input, an output or a gradient is the pack's."""
        start = self._start(name)
        return tensor if start is None else tensor.narrow(*start, tensor.shape[start[0]] - start[1])

    def with_own(self, name: str, whole: Tensor, own: Tensor) -> Tensor:
        """A tensor of the whole call with the pack's values where they belong."""
        start = self._start(name)
        return (
            own
            if start is None
            else torch.cat((whole.narrow(start[0], 0, start[1]), own), start[0])
        )

    def parts(self, found: Tensors) -> Tensors:
        return {name: self.own(name, x).contiguous() for name, x in found.items()}

    def loss(self) -> Any:
        """The pack's incoming gradients, 0 for the sequence in front."""
        return self.case.loss_of(
            {name: self._behind_zeros(name, dy) for name, dy in self.case.given.items()}
        )

    def _behind_zeros(self, name: str, dy: Tensor) -> Tensor:
        start = self._start(name)
        if start is None:
            return dy
        shape = [*dy.shape]
        shape[start[0]] = start[1]
        return torch.cat((dy.new_zeros(shape), dy), start[0])


def _forward(case: CallRuleCase) -> list[Outcome]:
    behind = PackBehind.of(case)
    return case.judged(behind.parts(case.run(behind.whole)))


def _backward(case: CallRuleCase) -> list[Outcome]:
    behind = PackBehind.of(case)
    return case.judged_back(behind.parts(case.back(behind.loss(), behind.whole)))


_rule = partial(CallRule, packed=True, sequences=True, spare=False, costly=True, once=True)
RULES: Final = (
    _rule("behind-long", f"a pack behind {TOKENS:,} tokens of another returns what it does alone",
          "first rows or states of sequences behind whole multiples of tiles", _forward),
    _rule("behind-long-backward", "the same of all gradients",
          "states kept of a sequence, counted in another way by the backward", _backward,
          backward=True),
)  # fmt: skip
