"""Tokens that begin late: thousands of tokens that write nothing, then a few that do.

A state of 0 that nothing is written to stays 0, exactly, in every kernel. What follows is a short
call, whose exact values cost little: a kernel that counted chunks of 16 tokens in a byte read those
of the first chunk after 4,096 tokens, and was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.chunk_counts import NEUTRAL, NO_NEUTRAL
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role

LATE: Final = 4096
"""Tokens before: 256 chunks of 16, 64 of 64, 32 of 128."""
EARLY: Final = 8256
"""Tokens behind: 129 chunks of 64. A backward that handed the gradient of the state from one
segment of 8,192 tokens to the one before in bf16 was accepted at 4,096."""


@dataclass(frozen=True)
class LateCall:
    """A long call, and the short one that its last tokens are.

    Args:
        case: of the short problem.
        long: the call with LATE tokens before, whose beta is 0.
        short: its last tokens alone.
    """

    case: CallRuleCase
    long: Any
    short: Any

    @classmethod
    def of(cls, case: CallRuleCase) -> LateCall:
        """The call of a problem without a state; of a pack, whose first sequence is late.

        Raises:
            Unreachable: the kernel takes no sequence as long, or no token that writes nothing.
        """
        if is_interpreted(case.adapter):
            raise Unreachable(f"an interpreter would take minutes over {LATE} tokens")
        if case.adapter.domain.beta_range[0] > 0:
            raise Unreachable("it takes no token that writes nothing")
        # Gates that are all alike are read right from anywhere.
        short = replace(case, problem=case.beside(state="absent", B=1, gate="log-sigmoid"))
        first, *others = short.problem.lengths or (short.problem.T,)
        lengths = (LATE + first, *others)
        fields = {"lengths": lengths} if short.problem.packed else {}
        long = short.beside(T=LATE + short.problem.T, **fields)
        if (long.T, long.lengths or lengths) != (LATE + short.problem.T, lengths):
            raise Unreachable(f"it takes no sequence of {LATE} tokens")
        x = long.inputs()
        late = x.beta.clone()
        late[:, :LATE] = 0
        x = replace(x, beta=late)
        rows = x.signature.tensors(x, Role.TOKEN)
        return cls(
            short, x, replace(short.inputs, **{name: _last(one) for name, one in rows.items()})
        )

    def ends(self, found: Tensors) -> Tensors:
        """Outputs or gradients of the short call, from those of the long one."""
        signature = self.long.signature
        return {
            name: one if signature.is_state(name) else _last(one) for name, one in found.items()
        }

    def loss(self) -> Any:
        """The cotangents of the short call, 0 before it."""
        outputs = self.long.signature.cotangents
        return self.case.loss_of(
            {
                name: dy
                if self.long.signature.is_state(outputs[name])
                else torch.cat((_zeros(dy, LATE), dy), 1)
                for name, dy in self.case.given.items()
            }
        )


def _last(x: Tensor) -> Tensor:
    return x[:, LATE:].contiguous()


def _zeros(dy: Tensor, tokens: int) -> Tensor:
    """Cotangents of tokens that a loss leaves out."""
    return dy.new_zeros(dy.shape[0], tokens, *dy.shape[2:])


def _late(case: CallRuleCase) -> list[Outcome]:
    call = LateCall.of(case)
    return call.case.judged(call.ends(call.case.run(call.long)), call.short)


def _late_back(case: CallRuleCase) -> list[Outcome]:
    call = LateCall.of(case)
    found = call.ends(call.case.back(call.loss(), call.long))
    return call.case.judged_back(found, inputs=call.short)


def _early_back(case: CallRuleCase) -> list[Outcome]:
    """Tokens that change nothing follow: all gradients are those of the sequence without them."""
    short = replace(case, problem=case.beside(B=1, gate="log-sigmoid"))
    long = short.beside(T=short.problem.T + EARLY)
    if is_interpreted(case.adapter) or long.T != short.problem.T + EARLY:
        raise Unreachable(f"it takes no sequence of {EARLY} tokens, or minutes for one")
    x, tokens = long.inputs(), short.problem.T
    own = short.inputs.signature.tensors(short.inputs, Role.TOKEN, Role.STATE)
    rows = x.signature.tensors(x, Role.TOKEN)
    x = replace(x, **own | {name: _followed(own[name], rows[name], name) for name in rows})
    received = case.adapter.received(x)
    if any(bool(getattr(received, name)[:, tokens:].any()) for name in NEUTRAL):
        raise Unreachable(NO_NEUTRAL)
    states, outputs = x.signature.is_state, x.signature.cotangents
    loss = {
        name: dy if states(outputs[name]) else torch.cat((dy, _zeros(dy, EARLY)), 1)
        for name, dy in short.given.items()
    }
    found = {
        name: dx if states(name) else dx[:, :tokens].contiguous()
        for name, dx in short.back(short.loss_of(loss), x).items()
    }
    return short.judged_back(found)


def _followed(rows: Tensor, others: Tensor, name: str) -> Tensor:
    """Rows before EARLY others, which are 0 where a token that changes nothing is."""
    behind = others[:, -EARLY:]
    return torch.cat((rows, torch.zeros_like(behind) if name in NEUTRAL else behind), 1)


_rule = partial(
    CallRule,
    size="tails",
    packed=False,
    sequences=True,
    delta=True,
    spare=False,
    costly=True,
    once=True,
)
RULES: Final = (
    _rule("late", f"after {LATE:,} tokens that write nothing a sequence returns what it does alone",
          "numbers of chunks or tokens kept in a byte, rings of chunks, sums of gates over a whole"
          " sequence (H22)", _late),
    _rule("late-backward", "the same of its gradients", "the same in the backward", _late_back,
          backward=True),
)  # fmt: skip
OF_PACKS: Final = (
    _rule("late-packed", f"the same of a pack whose first sequence begins with {LATE:,} tokens that"
          " write nothing",
          "a sequence and its chunk in one number, whose bits for chunks run over", _late,
          packed=True),
    _rule("late-packed-backward", "the same of its gradients", "the same in the backward",
          _late_back, packed=True, backward=True),
)  # fmt: skip
OF_EARLY: Final = (
    _rule("early-backward", f"before {EARLY:,} tokens that change nothing a sequence has the"
          " gradients that it has alone", "a ring of states kept for the backward, of a length",
          _early_back, backward=True),
)  # fmt: skip
