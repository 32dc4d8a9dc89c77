"""The same tensors with other contents are another call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kdaverify.adapters.isolation.arena import bytes_of
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role, TensorCall


def _edited(case: CallRuleCase, other: Callable[[CallRuleCase], TensorCall]) -> list[Outcome]:
    case.reaches("objects")
    wanted = other(case)
    plain = case.run(wanted)
    given = case.inputs.copied()
    case.run(copied=lambda _: given)
    for name, tensor in given.tensors().items():
        # Through the storage, as another library writes: no version of the tensor counts it.
        bytes_of(tensor).copy_(bytes_of(getattr(wanted, name)))
    # another object of the same tensors: this one keeps what it derived from the former offsets
    found = case.run(wanted, copied=lambda _: replace(given))
    return same_or_right(
        plain,
        found,
        lambda x: case.judged(x, wanted),
        "where the tensors of an earlier call hold other values",
    )


def _other_offsets(case: CallRuleCase) -> TensorCall:
    other = case.beside(**case.other_offsets()).inputs()
    offsets = other.signature.tensors(other, Role.OFFSETS)
    # a dataclass each
    return replace(case.problem.inputs(), **offsets).copied()


def _other_values(case: CallRuleCase) -> TensorCall:
    return case.problem.replace(seed=case.problem.seed + 1).inputs().copied()


RULES = (
    CallRule(
        "edited-offsets",
        "offsets edited in place, without a new version of the tensor, are new offsets",
        "chunk indices kept for a tensor of offsets that has changed since",
        partial(_edited, other=_other_offsets),
        size="tails",
        sequences=True,
        offsets=True,
        channel="objects",
        costly=True,
    ),
    CallRule(
        "edited-values",
        "all tensors overwritten in place are a new call",
        "results, or converted inputs, kept for tensors that have changed since",
        partial(_edited, other=_other_values),
        channel="objects",
        costly=True,
    ),
)
