"""Cases that separate mistakes: small, odd widths, several heads, one or more chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.suspects import declared
from kdaverify.operator import operator_of
from kdaverify.operators.kda.mistakes.copies import ObservedPass
from kdaverify.operators.kda.mistakes.search import ObservedCase
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.cotangents import of_exposed
from oracles.certified import UncertifiedError

CHUNK: Final = 64
SHORT: Final = 6
"""Tokens of a case in which every product of a chunk shows."""
TILES: Final = 20
"""Tokens of a case of two tiles of 16 rows."""
# K is no power of 4, or the scale would be a power of two; V is neither K nor a multiple of it.
SIZES: Final[dict[str, Any]] = {"B": 1, "H": 2, "HV": 4, "K": 5, "V": 11, "lengths": None}
LARGEST: Final = 40_000
"""Elements of v and of the states together, of a case that all mistakes are tried on."""


def cases(question: PropertyCase, judged: Adapter) -> Iterator[ObservedCase]:
    """What the kernel gives on them, where it gives the same when it is repeated.

    Args:
        question: a plain call or its gradients, of whose regimes the cases are.
    """
    problem, size = question.problem, declared(question, judged).chunk_size
    chunk = size if size > 1 else CHUNK
    backward = PROPERTIES[question.property].backward
    for T in (SHORT, TILES, chunk + SHORT, chunk):
        small = problem.replace(**SIZES, T=T)
        found = _evidence(
            question, judged, operator_of(problem).fitted(judged, small, backward=backward), chunk
        )
        if found is not None:
            yield found
    found = _evidence(question, judged, problem, chunk)
    if found is not None:
        yield found


def _evidence(
    question: PropertyCase, judged: Adapter, problem: Problem, chunk: int
) -> ObservedCase | None:
    if (
        problem.T * problem.HV * problem.V + problem.N * problem.HV * problem.K * problem.V
        > LARGEST
        or judged.supports(problem) is not None
    ):
        return None
    try:
        compared = FaultComparison(
            PropertyCase(question.property, problem, question.detail), judged
        )
    except (ContractOverflow, UncertifiedError, ValueError):
        return None
    if compared.kernel.failed is not None or not compared.repeats:
        return None
    exposed = judged.exposes(problem)
    if PROPERTIES[question.property].backward:
        given = cotangents(
            problem,
            question.detail.get("of", of_exposed(exposed)),
            question.detail.get("exponent", 0),
        )
    else:
        given = None
    # A shorter chunk than the kernel's, where no sequence fills it: what lies past its end costs as
    # much as a token.
    longest = max((length for _, _, length in problem.spans), default=0)
    rows = min(chunk, longest + 1)
    seen = ObservedPass(judged.received(problem.inputs()), rows, given)
    return ObservedCase(seen, compared.kernel, compared.scales)
