"""The contract of a call: one rule tested on one problem; inside the kernel's own process where it
has to be, and what has to be judged by certified values is judged here.

An isolated kernel gets copies of tensors and returns copies. Its own memory, its tensor objects,
its streams and its signature can be seen by a caller beside it alone, so such a rule is carried out
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from kdaverify.adapters.base import Adapter, is_interpreted
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.execute import CallError, watched
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.operator import problem_from_json
from oracles.autograd import ForwardOnlyError
from oracles.signature import TensorCall


@dataclass(frozen=True)
class Unjudged:
    """Tensors of a call that have to be compared with certified values.

    Args:
        tensors: outputs, or gradients, by name.
        inputs: of the call; None for those of the case.
        backward: whether they are gradients.
        loss: whose gradients; None for that of the case.
    """

    tensors: Mapping[str, Tensor]
    inputs: TensorCall | None
    backward: bool
    loss: Any = None


@dataclass(frozen=True)
class _CallingCase(CallRuleCase):
    """A case that puts off every comparison with certified values."""

    unjudged: list[Unjudged] = field(default_factory=list[Unjudged])

    def judged(
        self, found: Mapping[str, Tensor], inputs: TensorCall | None = None
    ) -> list[Outcome]:
        self.unjudged.append(Unjudged(found, inputs, backward=False))
        return []

    def judged_back(
        self, found: Mapping[str, Tensor], given: Any = None, inputs: TensorCall | None = None
    ) -> list[Outcome]:
        self.unjudged.append(Unjudged(found, inputs, backward=True, loss=given))
        return []


def tried_inside(case: CallRuleCase, rule: str) -> list[Outcome]:
    """The outcomes of a rule whose calls are made in the kernel's own process.

    Raises:
        CallError: the process did not survive them.
    """
    trial = partial(_trial, problem=case.problem.to_json(), rule=rule, times=case.times)
    outcomes, unjudged = watched(lambda: case.adapter.inside(trial), "call")
    return [*outcomes, *(outcome for one in unjudged for outcome in _judged(case, one))]


def _trial(
    adapter: Adapter, *, problem: str, rule: str, times: int
) -> tuple[list[Outcome], list[Unjudged]]:
    """What is done beside the kernel: module-level, so that its name reaches another process."""
    case = _CallingCase(adapter, problem_from_json(problem), times)
    try:
        return RULES[rule].check(case), case.unjudged
    except Unreachable as reason:
        # Rules without outcomes say so; those of results that are judged elsewhere are to come. A
        # port all of whose gradients were wrong was skipped.
        return [] if case.unjudged else skipped(str(reason)), case.unjudged
    except CallError as fault:
        if fault.status.takes_process and fault.__cause__ is not None:
            # An answer would leave this process to the next rule, whose device is lost: after the
            # first misaligned call of FlashKDA five right ones of other rules were crashes.
            raise fault.__cause__ from None
        return [Outcome(fault.output, fault.status, fault.message)], []


def _judged(case: CallRuleCase, found: Unjudged) -> list[Outcome]:
    # Certified values are of the inputs as the harness has them, wherever the kernel had them.
    inputs = None if found.inputs is None else found.inputs.on(case.inputs.device)
    if found.backward:
        return case.judged_back(found.tensors, found.loss, inputs)
    return case.judged(found.tensors, inputs)


# Calls of a rule about repetition, as under smoke: a race that changes 31 % of the calls is seen
# with a probability of 95 %.
FEW = 8


def calls(adapter: Adapter, problem: Any, *, rule: str, times: int = FEW) -> list[Outcome]:
    """Tests what a caller may rely on whatever the numbers.

    Args:
        rule: a name of RULES.
        times: how often a rule about repetition calls.
    """
    if rule not in RULES:
        raise ValueError(f"calls: no rule {rule!r}; there are {', '.join(RULES)}")
    if not adapter.open_ended:
        return skipped("its outputs come from files: no call is made that could differ")
    if RULES[rule].is_real and is_interpreted(adapter):
        return skipped("an interpreter would take hours at this size")
    case = CallRuleCase(adapter, problem, times)
    try:
        return (
            tried_inside(case, rule) if RULES[rule].needs_its_process else RULES[rule].check(case)
        )
    except (Unreachable, ForwardOnlyError) as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
