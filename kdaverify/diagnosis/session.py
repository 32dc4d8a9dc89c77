"""Diagnoses of a session: one case of every property that fails, in the time there is."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.fault import told
from kdaverify.canonical import ProblemError
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operator import cost_of, problem_from_json
from kdaverify.verdicts.verdict import Verdict

Asked = tuple[str, str, str, str]


def diagnosed(verdicts: Sequence[Verdict], adapter: Adapter, *, seconds: float) -> dict[Asked, str]:
    """What is wrong, by what was asked: of every property that fails the smallest case, which is the one that is shown.

    Math: every property gets an equal share of the time that is left; what is begun is ended. A kernel that took its process once is
    not asked again: every smaller case could cost a time limit.

    Args:
        verdicts: of `adapter`.
        seconds: in all.
    """
    if any(verdict.status.takes_process for verdict in verdicts):
        return {}
    cases = [min(own, key=_size) for own in _by_property(verdicts).values()]
    until, found = time.monotonic() + seconds, dict[Asked, str]()
    for number, verdict in enumerate(cases):
        left = until - time.monotonic()
        if left <= 0:
            break
        found[verdict.asked()] = _told(verdict, adapter, left / (len(cases) - number))
    return found


def question_of(verdict: Verdict) -> PropertyCase:
    """What was asked of the kernel.

    Raises:
        ProblemError: the verdict's problem is none of this version.
    """
    return PropertyCase(verdict.property, problem_from_json(verdict.problem), verdict.detail)


def _told(verdict: Verdict, adapter: Adapter, seconds: float) -> str:
    try:
        return str(diagnose(adapter, question_of(verdict), seconds=seconds))
    except Exception as error:  # noqa: BLE001 # the verdicts must not be lost
        return f"not diagnosed: {told(error)}"


def _by_property(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    found = dict[str, list[Verdict]]()
    for verdict in verdicts:
        if verdict.status.localised and verdict.problem:
            found.setdefault(verdict.property, []).append(verdict)
    return found


def _size(verdict: Verdict) -> float:
    try:
        return cost_of(verdict.problem)
    except ProblemError:
        return float("inf")
