"""A batch entry has the results that it has alone."""

from __future__ import annotations

import torch

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role, TensorCall


def _alone(case: CallRuleCase) -> list[Outcome]:
    if case.problem.packed:
        raise Unreachable("it takes no batches")
    case.beside(B=1)
    parts = [case.run(_entry(case.inputs, b)) for b in range(case.problem.B)]
    alone = {name: torch.cat([part[name] for part in parts]) for name in case.exposed}
    return same_or_right(alone, case.run(), case.judged, "for every batch entry alone")


def _reversed(case: CallRuleCase) -> list[Outcome]:
    if case.problem.packed:
        raise Unreachable("it takes no batches")
    turned: Tensors = case.run(_entry(case.inputs, slice(None), flipped=True))
    return same_or_right(
        case.run(),
        {name: tensor.flip(0) for name, tensor in turned.items()},
        case.judged,
        "in reversed order",
    )


def _entry(x: TensorCall, which: int | slice, *, flipped: bool = False) -> TensorCall:
    rows = slice(which, which + 1) if isinstance(which, int) else which
    return x.mapped(
        lambda tensor: tensor[rows].flip(0) if flipped else tensor[rows].contiguous(),
        Role.TOKEN,
        Role.STATE,
    )


_EXPOSES = "offsets of batch entries, work space shared among them"
RULES = (
    CallRule(
        "batch-alone",
        "the entries of a batch, one by one",
        _EXPOSES,
        _alone,
        packed=False,
        sequences=True,
        costly=True,
    ),
    CallRule(
        "batch-reversed",
        "the entries of a batch in another order",
        _EXPOSES,
        _reversed,
        packed=False,
        sequences=True,
        costly=True,
    ),
)
