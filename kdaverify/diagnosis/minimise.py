"""The smallest case that still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.diagnosis.question import PropertyCase, bench, shrinks
from kdaverify.operator import operator_of

OBVIOUS: Final = 8.0
"""A ratio from which a failure is no rounding noise; what fails by less keeps half of what it
had."""
WHOLE: Final = ("rms", "largest")
"""The statistics by which kernels are compared with known faults."""
Failure = tuple[str, Status, float]


def failure(adapter: Adapter, question: PropertyCase) -> Failure | None:
    """(output, status, ratio) of the worst rejected output, its ratio as a whole; or None."""
    found = [
        outcome
        for outcome in check(question.property, adapter, question.problem, question.detail)
        if outcome.status.rejects
    ]
    return max(
        (_reported(outcome) for outcome in found), key=lambda reported: reported[2], default=None
    )


def _reported(outcome: Outcome) -> Failure:
    whole = (
        [outcome.comparison.ratios[name] for name in WHOLE if name in outcome.comparison.ratios]
        if outcome.comparison
        else []
    )
    ratio = float("inf") if outcome.ratio is None else outcome.ratio
    return outcome.output, outcome.status, max(whole, default=ratio)


def minimise(
    adapter: Adapter,
    question: PropertyCase,
    *,
    until: float,
    failed: Failure,
    also: Callable[[PropertyCase], bool] | None = None,
) -> PropertyCase:
    """Shrinks a case while it fails with the same status, by enough not to be rounding noise.

    Batch, heads, widths and scale first, then sequences and tokens, then regimes, until no choice
    keeps the failure.

    Args:
        until: of the monotonic clock; what was reached by then is returned.
        failed: how the case fails.
        also: what smaller cases have to fulfil besides.
    """
    if not shrinks(question):
        return question
    _, status, ratio = failed
    least = min(OBVIOUS, ratio / 2) if ratio > 1 else ratio

    def keeps(smaller: PropertyCase) -> bool:
        if (
            status is Status.NONFINITE
            and operator_of(smaller.problem).has_known_bugs
            and _finite(adapter, smaller)
        ):
            return False
        try:
            found = failure(adapter, smaller)
        except ValueError:  # the property is not tested on such a problem
            return False
        fails = found is not None and found[1] is status and found[2] >= least
        return fails and (also is None or also(smaller))

    return _shrunk(question, keeps, until)


def _finite(adapter: Adapter, question: PropertyCase) -> bool:
    """Whether the kernel answers with finite numbers; that needs no truth, which takes longest."""
    answer = bench(question, adapter).answer(adapter)
    return answer.failed is None and all(
        bool(tensor.isfinite().all()) for tensor in answer.outputs.values()
    )


def _shrunk(
    question: PropertyCase, keeps: Callable[[PropertyCase], bool], until: float
) -> PropertyCase:
    tried, moved = {_key(question)}, True
    while moved:
        moved = False
        for smaller in _smaller(question):
            if time.monotonic() > until:
                return question
            if _key(smaller) in tried:
                continue
            tried.add(_key(smaller))
            if keeps(smaller):
                question, moved = smaller, True
                break
    return question


def _key(question: PropertyCase) -> tuple[str, str]:
    return question.problem.to_json(), str(question.detail)


def _smaller(question: PropertyCase) -> Iterator[PropertyCase]:
    for change, detail in operator_of(question.problem).smaller(question.problem, question.detail):
        try:
            problem = question.problem.replace(**change)
        except ValueError:
            continue
        yield PropertyCase(question.property, problem, detail)
