"""Bits of two calls: the same, or different and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kdaverify.adapters.isolation.arena import same
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.place import first_true, place
from kdaverify.checks.status import Status
from oracles.signature import TensorCall

Judge = Callable[[Mapping[str, Tensor]], list[Outcome]]


def differing(plain: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """The tensors that are not the same bits."""
    return [name for name in plain if not same(plain[name].contiguous(), found[name].contiguous())]


def same_bits(
    plain: Mapping[str, Tensor], found: Mapping[str, Tensor], inputs: TensorCall, said: str
) -> list[Outcome]:
    """Every tensor must be the same bits.

    Args:
        said: when `found` was found, in words.
    """
    wrong = differing(plain, found)
    return [
        (
            _different(name, plain[name], found[name], inputs, said)
            if name in wrong
            else Outcome(name, Status.PASS, f"{name}: same bits {said}")
        )
        for name in plain
    ]


def same_or_right(
    plain: Mapping[str, Tensor], found: Mapping[str, Tensor], judge: Judge, said: str
) -> list[Outcome]:
    """The same bits, or within the tolerance: other calls may add in another order.

    The same bits are inconclusive where they are no numbers: memory that nobody wrote may hold NaN
    in both calls.
    """
    other = differing(plain, found)
    wrong = [name for name in found if name in other or not bool(torch.isfinite(found[name]).all())]
    kept = [
        Outcome(name, Status.PASS, f"{name}: same bits {said}")
        for name in plain
        if name not in wrong
    ]
    return [*kept, *(judge({name: found[name] for name in wrong}) if wrong else [])]


def _different(name: str, plain: Tensor, found: Tensor, inputs: TensorCall, said: str) -> Outcome:
    other = (plain != found) & ~(plain.isnan() & found.isnan())
    if not bool(other.any()):
        return Outcome(name, Status.FAIL, f"{name}: zeros of another sign, or other NaNs, {said}")
    at = first_true(other)
    where = place(name, at, found.shape, inputs)
    message = (
        f"{name}: {int(other.sum())} of {other.numel()} elements are other bits {said}\n  first at"
        f" {where}"
    )
    return Outcome(
        name,
        Status.FAIL,
        f"{message}\n  got {found.flatten()[at].item():.9g}, before"
        f" {plain.flatten()[at].item():.9g}",
    )
