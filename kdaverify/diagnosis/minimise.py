"""The smallest question that still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.status import Status
from kdaverify.diagnosis.question import PropertyCase, bench
from kdaverify.problems import ActivationProblem, Problem
from kdaverify.problems.regimes import REGIMES

LENGTHS: Final = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 66, 80, 128, 129, 130, 192)
"""Tokens that are tried, fewest first: around sub-blocks and chunks, where faults begin."""
LEAPS: Final = (2, 17, 66, 130)
NARROW: Final = 4
WIDTHS: Final = (1, 2, 4, 8, 16, 32)
FAMILIAR: Final = {
    "gate": ("mild", "log-sigmoid"),
    "key": ("random",),
    "beta": ("uniform",),
    "state": ("absent", "random"),
    "value": ("normal",),
}
"""Regimes that hide nothing and add nothing."""
OBVIOUS: Final = 8.0
"""A ratio from which a failure is told from noise; what fails by less keeps half of what it had."""
WHOLE: Final = ("rms", "largest")
"""The statistics by which kernels are compared with known faults."""
Failure = tuple[str, Status, float]


def failure(adapter: Adapter, question: PropertyCase) -> Failure | None:
    """(output, status, ratio) of the worst of what rejects, the ratio that of the output as a whole; None where nothing does."""
    found = [outcome for outcome in check(question.property, adapter, question.problem, question.detail) if outcome.status.rejects]
    return max((_told(outcome) for outcome in found), key=lambda told: told[2], default=None)


def _told(outcome: Outcome) -> Failure:
    whole = [outcome.comparison.ratios[name] for name in WHOLE if name in outcome.comparison.ratios] if outcome.comparison else []
    ratio = float("inf") if outcome.ratio is None else outcome.ratio
    return outcome.output, outcome.status, max(whole, default=ratio)


def minimise(adapter: Adapter, question: PropertyCase, *, until: float, failed: Failure) -> PropertyCase:
    """Shrinks a question while it fails with the same status, by no less than is needed to tell it from noise.

    Batch, heads, widths and scale first, then sequences and tokens, then regimes, until no choice keeps the failure.

    Args:
        until: of the monotonic clock; what was reached by then is returned.
        failed: how the question fails.
    """
    if not PROPERTIES[question.property].shrinks:
        return question
    _, status, ratio = failed
    least = min(OBVIOUS, ratio / 2) if ratio > 1 else ratio

    def keeps(smaller: PropertyCase) -> bool:
        if status is Status.NONFINITE and _finite(adapter, smaller):
            return False
        try:
            found = failure(adapter, smaller)
        except ValueError:  # the property is not asked of such a problem
            return False
        return found is not None and found[1] is status and found[2] >= least

    return _shrunk(question, keeps, until)


def _finite(adapter: Adapter, question: PropertyCase) -> bool:
    """Whether the kernel answers with finite numbers: to see that, no truth is needed, which takes longest."""
    answer = bench(question, adapter).answer(adapter)
    return answer.failed is None and all(bool(tensor.isfinite().all()) for tensor in answer.outputs.values())


def _shrunk(question: PropertyCase, keeps: Callable[[PropertyCase], bool], until: float) -> PropertyCase:
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
    problem = question.problem
    if isinstance(problem, ActivationProblem):
        yield from _replaced(question, [{axis: size} for axis in ("B", "T", "HV", "K") for size in _below(getattr(problem, axis), WIDTHS)])
        return
    # Leaps first, then what rarely matters, so that every later try is cheap.
    yield from _leaps(question)
    yield from _replaced(question, [{"B": 1}] if problem.B > 1 else [])
    yield from _replaced(question, [{"H": 1, "HV": 1}, {"H": 1, "HV": 2}, {"H": 1}, {"HV": problem.H}])
    widths = [{axis: size} for size in WIDTHS for axis in ("K", "V") if size < getattr(problem, axis)]
    yield from _replaced(question, [{"K": size, "V": size} for size in _below(min(problem.K, problem.V), WIDTHS)] + widths)
    yield from _replaced(question, [{"scale": None}] if problem.scale is not None else [])
    if problem.lengths is not None:
        yield from _replaced(question, _packs(problem))
    else:
        for tokens in _below(problem.T, LENGTHS):
            yield from _cut(question, tokens)
    regimes = [{axis: name} for axis in REGIMES for name in FAMILIAR[axis] if getattr(problem, axis) not in FAMILIAR[axis]]
    yield from _replaced(question, regimes)


def _leaps(question: PropertyCase) -> Iterator[PropertyCase]:
    """Few tokens, heads and channels at once."""
    problem = question.problem
    if not isinstance(problem, Problem) or problem.packed or "cut" in question.detail:
        return
    small = {"B": 1, "H": 1, "HV": 2 if problem.HV > problem.H else 1, "K": min(problem.K, NARROW), "V": min(problem.V, NARROW)}
    yield from _replaced(question, [{**small, "T": tokens} for tokens in _below(problem.T, LEAPS)])


def _below(size: int, choices: tuple[int, ...]) -> list[int]:
    return [choice for choice in choices if choice < size]


def _packs(problem: Problem) -> list[dict[str, Any]]:
    """Without one sequence, without padding, or with one sequence shorter."""
    lengths, padding = problem.lengths or (), problem.T - sum(problem.lengths or ())
    fewer = [lengths[:n] + lengths[n + 1 :] for n in range(len(lengths))] if len(lengths) > 1 else []
    halves = [lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]] if len(lengths) > 3 else []  # more than are dropped one by one
    shorter = [
        (*lengths[:n], tokens, *lengths[n + 1 :]) for n, length in enumerate(lengths) for tokens in _below(length, LENGTHS)
    ]  # fmt: skip
    packs = [{"lengths": pack, "T": sum(pack) + padding} for pack in (*halves, *fewer, *shorter) if sum(pack) + padding]
    return [*([{"T": sum(lengths)}] if padding and sum(lengths) else []), *packs]


def _cut(question: PropertyCase, tokens: int) -> Iterator[PropertyCase]:
    """Fewer tokens; of a run that is cut, fewer before it or behind."""
    cut = question.detail.get("cut")
    if cut is None:
        yield from _replaced(question, [{"T": tokens}])
        return
    assert isinstance(question.problem, Problem)
    behind = question.problem.T - cut
    ways = [(tokens, cut)] if tokens > cut else [(tokens + behind, tokens)] if tokens < cut else []
    for T, at in ways:
        for smaller in _replaced(question, [{"T": T}]):
            yield PropertyCase(smaller.property, smaller.problem, {**question.detail, "cut": at})


def _replaced(question: PropertyCase, changes: list[dict[str, Any]]) -> Iterator[PropertyCase]:
    for change in changes:
        try:
            problem = question.problem.replace(**change)
        except ValueError:
            continue
        yield PropertyCase(question.property, problem, question.detail)
