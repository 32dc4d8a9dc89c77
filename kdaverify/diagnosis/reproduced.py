"""Which failures a plain call explains: one bug fails in twenty suites, to be reported once.

A failure of resume, of packing or of a law is news where the uncut, the single, the unchanged call
passes. Where that has the same wrong outputs, the suite adds nothing to it; neither do the
gradients of a call whose forward is wrong, if they are its derivative. What cannot be shown to be
the same is reported by itself: a second bug must not vanish behind the first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.canonical import ProblemError
from kdaverify.checks.properties import check, is_of_gradients
from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.checks.status import Status
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.question import PropertyCase, bench
from kdaverify.diagnosis.tolerances import APART, fit
from kdaverify.operator import CallOperator, cost_of, operator_named, problem_from_json
from kdaverify.verdicts.verdict import Verdict
from oracles.certified import UncertifiedError

FailureKind = tuple[str, str, Status, str]
"""Property, what it chose beside the problem (a law, a direction, an arrangement), status and
output."""
Row = tuple[tuple[str, str, str, str], str]
"""What was tested, and the output."""
TESTED: Final = 2
"""Problems of a kind that are run again: with one alone, one in three second bugs that strike
elsewhere would be taken for the first."""
LARGEST: Final = 0.2
"""Largest `cost` of a problem that is run again."""
FAR: Final = 1 + 2 * APART
"""Times the tolerance: outputs that lie no further apart than two conforming kernels are then all
off by more than one tolerance."""
CHOICES: Final = ("law", "rule", "direction", "probe", "way", "arrangement", "variant")
"""Details that decide what is tested; the others say where."""
FORWARD: Final = "forward"
GRADIENTS: Final = "gradients"
DERIVATIVE: Final = "self_consistency"
"""Whether gradients are the derivative of the kernel's own forward."""


def reproduced(verdicts: Sequence[Verdict], adapter: Adapter, *, seconds: float) -> dict[Row, str]:
    """The failures that a plain call explains, each with that call: "forward" or "gradients".

    Math: of every kind of failure, outputs before gradients and the most frequent first, one or two
    inexpensive problems are run again, those that were run for another kind before others. A kind
    is explained if each of them is; of one where only some are, those alone. A kernel that took its
    process once is not run again.

    Args:
        verdicts: of `adapter`.
        seconds: after which kinds left count as unexplained; what is begun is ended.
    """
    until = time.monotonic() + seconds
    found = dict[Row, str]()
    plain = _PlainCalls(adapter, _tested(verdicts))
    if any(verdict.status.takes_process for verdict in verdicts) or not adapter.open_ended:
        return found
    for rows in sorted(_kinds(verdicts).values(), key=_turn):
        if time.monotonic() > until:
            break
        found |= _explained(plain, rows)
    return found


def row_of(verdict: Verdict) -> Row:
    """By which `reproduced` names a verdict."""
    return verdict.case_key(), verdict.output


def _turn(rows: Sequence[Verdict]) -> tuple[bool, int]:
    """Gradients last: testing a derivative takes ten times as long as a plain forward."""
    return is_of_gradients(rows[0].property, rows[0].detail), -len(rows)


def _explained(plain: _PlainCalls, rows: Sequence[Verdict]) -> dict[Row, str]:
    """The rows of one kind that a plain call explains."""
    reported = {row_of(row): plain.explains(row) for row in _least_expensive(rows, plain)}
    if reported and all(reported.values()):
        return dict.fromkeys(map(row_of, rows), next(iter(reported.values())))
    return {row: call for row, call in reported.items() if call}


def _kinds(verdicts: Iterable[Verdict]) -> Mapping[FailureKind, list[Verdict]]:
    """Failures by kind, except plain forwards, stages and differences between calls."""
    found = dict[FailureKind, list[Verdict]]()
    for row in verdicts:
        if (
            row.property not in PROPERTIES
            or row.left_open()
            or not (row.status.localised and row.problem)
        ):
            continue
        own = PROPERTIES[row.property]
        alone = plain_call(row.property, row.detail) == FORWARD or own.stages or own.relates
        if not alone and isinstance(operator_named(row.op), CallOperator):
            chosen = " ".join(str(row.detail[name]) for name in CHOICES if name in row.detail)
            found.setdefault((row.property, chosen, row.status, row.output), []).append(row)
    return found


def _least_expensive(rows: Sequence[Verdict], plain: _PlainCalls) -> list[Verdict]:
    """Problems of a kind whose plain calls cost least; one that is known already costs nothing."""
    by_problem = {row.problem: row for row in rows if _cost(row.problem) <= LARGEST}
    return sorted(by_problem.values(), key=lambda row: (not plain.covers(row), _cost(row.problem)))[
        :TESTED
    ]


def _tested(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], dict[str, Status]]:
    """The plain forwards of the session itself, by problem."""
    found = dict[tuple[str, str], dict[str, Status]]()
    for row in verdicts:
        if (
            row.property in PROPERTIES
            and row.status.judged
            and plain_call(row.property, row.detail) == FORWARD
        ):
            found.setdefault((FORWARD, row.problem), {})[row.output] = row.status
    return found


def _cost(problem: str) -> float:
    try:
        return cost_of(problem)
    except ProblemError:  # a record of another version
        return float("inf")


@dataclass(frozen=True)
class _PlainCalls:
    """Calls of one kernel on the problems of its failures, each run once."""

    adapter: Adapter
    _run: dict[tuple[str, str], dict[str, Status]]

    def covers(self, row: Verdict) -> bool:
        """Whether what explains a failure was run on its problem."""
        names = (DERIVATIVE, GRADIENTS) if is_of_gradients(row.property, row.detail) else (FORWARD,)
        return any((name, row.problem) in self._run for name in names)

    def explains(self, row: Verdict) -> str:
        """The plain call that explains a failure; "" where none does."""
        if is_of_gradients(row.property, row.detail):
            return self._explains_gradients(row)
        if PROPERTIES[row.property].same_outputs and (row.ratio is None or row.ratio > FAR):
            return FORWARD if self._has_plain_outputs(row) else ""
        wrong = _is_wrong(row, self._outcomes(FORWARD, row.problem), row.status)
        if wrong and (not PROPERTIES[row.property].same_outputs or self._has_plain_outputs(row)):
            return FORWARD
        return ""

    def _explains_gradients(self, row: Verdict) -> str:
        # Gradients of a wrong forward differ from the exact ones. That they are its derivative is
        # tested without exact gradients.
        if any(status.rejects for status in self._outcomes(FORWARD, row.problem).values()):
            derived = {*self._outcomes(DERIVATIVE, row.problem).values()} == {Status.PASS}
            return FORWARD if derived else ""
        if plain_call(row.property, row.detail) == GRADIENTS:
            return ""
        return (
            GRADIENTS if _is_wrong(row, self._outcomes(GRADIENTS, row.problem), row.status) else ""
        )

    def _outcomes(self, name: str, text: str) -> dict[str, Status]:
        """The statuses of a property on a problem, by output."""
        if (name, text) not in self._run:
            problem = problem_from_json(text)
            whole = self.adapter.operator.whole(self.adapter.exposes(problem))
            detail: dict[str, Any] = {"of": whole} if name == GRADIENTS else {}
            self._run[name, text] = {
                found.output: found.status for found in check(name, self.adapter, problem, detail)
            }
        return self._run[name, text]

    def _has_plain_outputs(self, row: Verdict) -> bool:
        """Whether a case's calls have one forward's outputs, as conforming kernels would."""
        problem = problem_from_json(row.problem)
        cases = PropertyCase(row.property, problem, row.detail), PropertyCase(FORWARD, problem)
        try:
            derived, plain = (bench(case, self.adapter) for case in cases)
            own, scales = derived.answer(self.adapter), derived.tolerances()
            leading = _leading(plain.answer(self.adapter), own)
            return fit(own, leading, scales).noise <= 1
        except (ContractOverflow, UncertifiedError, NotImplementedError):
            return False


def _is_wrong(row: Verdict, outcomes: Mapping[str, Status], status: Status) -> bool:
    """Whether a plain call fails alike: in this output, or in any if it has no such one."""
    found = outcomes.get(row.output)
    return status in outcomes.values() if found is None else found is status


def _leading(plain: KernelErrors, own: KernelErrors) -> KernelErrors:
    """The part of the plain outputs that a case's calls have: first tokens, some outputs."""
    kept = {name: tensor for name, tensor in plain.outputs.items() if name in own.outputs}
    parts = {
        name: tensor[tuple(slice(size) for size in own.outputs[name].shape)]
        for name, tensor in kept.items()
    }
    return KernelErrors(parts, plain.failed)
