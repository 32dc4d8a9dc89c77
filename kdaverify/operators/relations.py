"""Laws of operators that functions implement: two calls whose results must be related."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.laws.law import Law, nothing_else, of_any
from kdaverify.checks.outcome import Outcome, outcomes, rejected, skipped
from kdaverify.checks.place import first_true, place
from kdaverify.checks.status import Status

ROOM: Final = 2.0**6
"""More than any power of two that a law multiplies by."""
Tensors = dict[str, Tensor]
Check = Callable[[Adapter, Any], list[Outcome]]


class Untestable(Exception):
    """A law cannot be tested under the kernel's contract; the message says why."""


def relation(
    name: str,
    statement: str,
    exists_for: str,
    check: Check,
    *,
    untestable: Callable[[Any], str | None] = of_any,
    becomes: Callable[[Any], tuple[Any, ...]] = nothing_else,
    section: str = "reference, short convolution and gated RMSNorm",
    backward: bool = False,
    **wanted: Any,
) -> Law:
    """A law of outputs.

    Args:
        untestable, becomes, section, backward: as of `Law`.
        wanted: fields of the problems that it is tested on.
    """
    return Law(
        name,
        statement,
        section,
        exists_for,
        _watched(check),
        untestable=untestable,
        becomes=becomes,
        wanted=wanted,
        backward=backward,
    )


def _watched(check: Check) -> Check:
    def watched(adapter: Adapter, problem: Any) -> list[Outcome]:
        try:
            return check(adapter, problem)
        except CallError as fault:
            return [Outcome(fault.output, fault.status, fault.message)]
        except Untestable as reason:
            return skipped(str(reason))

    return watched


def run(adapter: Adapter, problem: Any, call: Any, *, step: bool = False) -> Tensors:
    """The outputs of a call, in memory of their own."""
    entry = adapter.step if step else adapter.forward
    return {
        name: y.clone()
        for name, y in execute(adapter, call, adapter.exposes(problem), entry=entry).outputs.items()
    }


def same(
    adapter: Adapter,
    call: Any,
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    said: str,
) -> list[Outcome]:
    """The same bits, or right ones in both calls, whose tiles and sums may be elsewhere.

    Args:
        call: that both answer.
    """

    def judged(other: Mapping[str, Tensor]) -> list[Outcome]:
        return outcomes(adapter, call, lambda: {**other})

    first = same_or_right(found, wanted, judged, said)
    if rejected(first):
        return first
    return same_or_right(wanted, found, judged, said)


def exactly(call: Any, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[Outcome]:
    """The same numbers, whatever the order of sums."""
    return [_exact(call, name, found[name], wanted[name]) for name in wanted]


def _exact(call: Any, name: str, found: Tensor, wanted: Tensor) -> Outcome:
    # What was subnormal in one of the calls has lost bits in any kernel.
    normal = (
        torch.maximum(found.double().abs(), wanted.double().abs())
        > ROOM * torch.finfo(found.dtype).tiny
    )
    wrong = (found.double() != wanted.double()) & (normal | ~torch.isfinite(found))
    if not bool(wrong.any()):
        return Outcome(
            name,
            Status.PASS,
            f"{name}: exact in all {int(normal.sum())} elements that are normal numbers",
        )
    at = first_true(wrong)
    message = (
        f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are not exact\n  first at"
        f" {place(name, at, found.shape, call)}"
    )
    status = Status.FAIL if bool(torch.isfinite(found).all()) else Status.NONFINITE
    return Outcome(
        name,
        status,
        f"{message}\n  got {float(found.flatten()[at]):.9g}, wanted"
        f" {float(wanted.flatten()[at]):.9g}",
    )
