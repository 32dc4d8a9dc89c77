"""Failing verdicts, and the stage where each case goes wrong first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.localise import localise
from kdaverify.checks.location import Location, NoStage
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.stages import stage_name
from kdaverify.operator import operator_named, operator_of, problem_from_json
from kdaverify.verdicts.verdict import Verdict

LARGEST: Final = 8.0
"""Largest `cost` of a case that a session localises: where every stage is right, that takes half a
minute on one core."""
TOO_LARGE: Final = Location(
    NoStage.NOT_JUDGED, "too large to go through stage by stage in a session; its replay does"
)


def located(verdicts: Sequence[Verdict], adapter: Adapter) -> list[Verdict]:
    """The same verdicts, rejecting ones with the first wrong stage, once for every case.

    Args:
        verdicts: of `adapter`, the outputs of a case together.
    """
    return [
        reported
        for _, case in groupby(verdicts, key=lambda verdict: verdict.case_key())
        for reported in _of_case(list(case), adapter)
    ]


def localises(case: Sequence[Verdict]) -> bool:
    """Whether the outputs of one case are to be localised."""
    gone = (
        any(verdict.status.takes_process for verdict in case)
        or not operator_named(case[0].op).staged
    )
    return not gone and any(verdict.status.localised and verdict.problem for verdict in case)


def at(case: Sequence[Verdict], location: Location) -> list[Verdict]:
    """The outputs of a case, those that reject with where it goes wrong first."""
    return [_with(verdict, location) if verdict.status.localised else verdict for verdict in case]


def _of_case(case: list[Verdict], adapter: Adapter) -> list[Verdict]:
    first = case[0]
    if PROPERTIES[first.property].stages:
        return [
            _with(v, Location(stage_name(adapter, v.dtype, v.output))) if v.status.rejects else v
            for v in case
        ]
    if operator_named(first.op).is_stage:
        return [
            _with(verdict, Location(first.op)) if verdict.status.localised else verdict
            for verdict in case
        ]
    if not localises(case):
        return case
    problem = problem_from_json(first.problem)
    return at(
        case,
        (
            TOO_LARGE
            if operator_of(problem).cost(problem) > LARGEST
            else localise(adapter, problem, first.property, first.detail)
        ),
    )


def _with(verdict: Verdict, location: Location) -> Verdict:
    return verdict.model_copy(update=location.fields)
