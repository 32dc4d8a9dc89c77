"""Compares the cases of a law with the plain call, and their negative controls too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.budget import Budget
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import ExactValues
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.statistics import ErrorStatistics, rms
from kdaverify.checks.calls.bits import same_bits
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import Outcome, refusal, skipped
from kdaverify.checks.status import Status
from kdaverify.operators.layer.call import LayerCall
from kdaverify.operators.layer.layout import TokenLayout
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.operators.layer.schedule import REFUSED
from kdaverify.operators.layer.tolerance import (
    WIDE,
    PlainCall,
    alone,
    cotangents,
    plain_call,
    rms_of,
    run,
)
from oracles.enclosure import Enclosure

FINE: Final = 2.0**-32
"""A change of hidden that fp32 does not have, and float64 to 21 bits."""
STRAIGHT: Final = 2.0**-4
"""Of what a change moves, what may be no multiple of it: 2^-21 times how far float64's roundings
are enlarged, at most 2^17 in layers that fp32 computes at all; in fp32 it is all of it."""
METHOD: Final = "plain calls of the layer itself"
EXACT: Final = 256
"""Tokens before which bf16 has every position; behind it rounds every second one."""
LATE_FACTOR: Final = 4.0
"""Of the largest error of early tokens. In eight layers in bf16 the largest late error was 0.1 to
0.95 of it; where positions were made in bf16, 4.4 to 100 times it."""


@dataclass(frozen=True)
class LayerCase:
    """A call, and which of its rows are tokens of the problem.

    Args:
        said: how the tokens were computed, in words.
        control: the call without what the law is about: must be wrong, or is inconclusive.
    """

    call: LayerCall
    layout: TokenLayout
    said: str
    control: LayerCall | None = None


Check = Callable[[Adapter, LayerProblem], list[Outcome]]
Cases = Callable[[LayerProblem], Iterator[LayerCase]]


def compared(cases: Cases, output: str = "out", needs: tuple[str, ...] = ()) -> Check:
    """The check that every token of every case has what the plain call has.

    Args:
        output: out, or dhidden.
        needs: what a layer without it is not tested on, as of `Law`.
    """

    def check(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
        lacking = [need for need in needs if not adapter.takes.has(need)]
        if lacking:
            return skipped(f"the layer does not take {lacking[0]}")
        found = skipped("the problem is too short")
        for case in cases(problem):
            found = [_judged(adapter, problem, case, output)]
            if found[0].status is not Status.PASS:
                break
        return found

    return _unless_refused(check)


def _repeated(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
    if not adapter.deterministic:
        return skipped("it declares deterministic=False")
    call = problem.inputs()
    first, second = (run(adapter, call) for _ in range(2))
    return same_bits({"out": first}, {"out": second}, call, "in a second call")


def _wide(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
    """A change far below fp32's unit moves out, and twice the change twice as far: rounded to fp32
    on the way, it moves nothing, or by whole units.
    """
    hidden = problem.inputs().hidden.double()
    plain, once, twice = (run(adapter, LayerCall(hidden * (1 + n * FINE))) for n in range(3))
    moved, bent = rms(once - plain), rms(twice - 2 * once + plain)
    if moved > 0 and bent <= STRAIGHT * moved:
        return [Outcome("out", Status.PASS, f"out: float64 hidden is computed in {WIDE}")]
    said = (
        f"out: declared reference='fp64', but float64 hidden is rounded to fewer digits on the way:"
        f" hidden times 1 + 2^-32 moves out by {moved:.3g}, and times 1 + 2^-31 by"
        f" {rms(twice - plain):.3g}; compute every part in float64, or declare reference='plain'"
    )
    return [Outcome("out", Status.FAIL, said)]


def _evenly(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
    """Errors of the plain call beside float64: those of late tokens and of early ones."""
    if not adapter.takes.has(WIDE):
        return skipped(f"the layer does not take {WIDE}")
    if problem.T <= EXACT + 1:
        return skipped(f"it takes no more than {EXACT + 1} tokens")
    hidden = problem.inputs().hidden
    truth, found = alone(adapter, hidden.double(), None), alone(adapter, hidden, None)
    if not bool(torch.isfinite(truth).all()):
        return [Outcome("out", Status.NONFINITE, "out: the plain call is not finite")]
    error = torch.maximum(rms_of(found - truth), FORMATS[problem.dtype].unit * rms_of(truth))
    # the first EXACT tokens are at positions 0 to EXACT - 1, and EXACT is a number of bf16
    early = torch.arange(problem.T) <= EXACT
    allowed = LATE_FACTOR * error[:, early].amax(1, keepdim=True).expand_as(error)
    held = _reference_by_rows("out", truth, allowed, FORMATS[problem.dtype])
    comparison = compare("out", found, held, problem.inputs())
    said = f"beside float64, against the errors of the first {EXACT} tokens"
    return [Outcome("out", comparison.status, f"{said}: {comparison}", comparison, METHOD)]


def _unless_refused(check: Check) -> Check:
    def watched(adapter: Adapter, problem: LayerProblem) -> list[Outcome]:
        try:
            return check(adapter, problem)
        except CallError as fault:
            found = Outcome(fault.output, fault.status, fault.message)
            _, refused, reason = fault.message.partition(f"{REFUSED}: ")
            return [refusal(reason) if refused else found]

    return watched


repeated: Final = _unless_refused(_repeated)
wide: Final = _unless_refused(_wide)
evenly: Final = _unless_refused(_evenly)


def _judged(adapter: Adapter, problem: LayerProblem, case: LayerCase, output: str) -> Outcome:
    lengths = case.layout.lengths if output == "dhidden" else None
    plain = plain_call(adapter, problem, lengths)  # pyright: ignore[reportArgumentType]
    if not bool(torch.isfinite(plain.truth).all()):
        return Outcome(output, Status.NONFINITE, f"{output}: the plain call is not finite")
    held = _reference(plain, case.layout, output, problem.dtype)
    loss = None if lengths is None else case.layout.there(cotangents(problem, lengths))

    def comparison(call: LayerCall) -> Comparison:
        return compare(output, run(adapter, call, loss), held, call)

    found = comparison(case.call)
    if found.status is Status.PASS and case.control and not _is_wrong(comparison, case.control):
        reason = "inconclusive: the negative control is within the tolerance too"
        return Outcome(output, Status.SKIP, f"{output}: {case.said}: {reason}")
    return Outcome(output, found.status, f"{case.said}: {found}", found, METHOD)


def _is_wrong(comparison: Callable[[LayerCall], Comparison], control: LayerCall) -> bool:
    """Whether the call without what the law is about is wrong, or declined."""
    try:
        return comparison(control).status is not Status.PASS
    except CallError:
        return True


def _reference(plain: PlainCall, layout: TokenLayout, output: str, dtype: str) -> Reference:
    """What a call's rows are to be. Rows without tokens have gradients of exactly 0."""
    truth, allowed = layout.there(plain.truth), layout.there(plain.allowed[..., None])
    rows = {"zero" if output == "dhidden" else "undefined": layout.empty.expand_as(truth)}
    return _reference_by_rows(output, truth, allowed, FORMATS[dtype], **rows)


def _reference_by_rows(
    output: str,
    truth: Tensor,
    allowed: Tensor,
    fmt: Format,
    *,
    zero: Tensor | None = None,
    undefined: Tensor | None = None,
) -> Reference:
    """The reference of one output of which only the rms error of every row is known.

    Args:
        truth: float64; allowed: the rms error of every row, over the last axis.
        fmt: the output's.
        zero: elements that are exactly 0; undefined: those that have no exact value.
    """
    nothing = torch.zeros_like(truth)
    exact = Enclosure(truth, nothing, nothing, nothing.bool() if zero is None else zero)
    inf = math.inf
    statistics = ErrorStatistics(inf, inf, allowed.flatten(), inf, inf, inf)
    budget = Budget(statistics, fmt, lost=0.0, undefined=undefined)
    return Reference(ExactValues({output: exact}, METHOD), {output: budget})
