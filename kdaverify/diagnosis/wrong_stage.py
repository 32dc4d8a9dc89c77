"""The first wrong stage of a kernel that exposes none, by what its outputs are like."""

from __future__ import annotations

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.checks.location import Location
from kdaverify.checks.properties import check
from kdaverify.diagnosis.diagnosis import Diagnosis
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError


def wrong_stage(adapter: Adapter, found: Diagnosis, first: PropertyCase) -> Location | None:
    """The stage of the known bug that matches; else the one that the outputs themselves point to,
    of the smallest case before the first; None where they point to none, or nothing fails.

    Args:
        found: the diagnosis.
        first: the case before it was made smaller.
    """
    if not operator_of(first.problem).hidden_stages or found.passes:
        return None
    if found.fits and found.named:
        fault = found.named[0].suspect.fault
        return Location(fault.stage, f"that of {fault.id}, which matches")
    if not adapter.open_ended:
        return None
    cases = dict.fromkeys((found.smallest.problem, first.problem))
    each = (_by_itself(PropertyCase(first.property, x, first.detail), adapter) for x in cases)
    return next((stage for stage in each if stage is not None), None)


def _by_itself(case: PropertyCase, adapter: Adapter) -> Location | None:
    try:
        outcomes = check(case.property, adapter, case.problem, case.detail)
        wrong = frozenset(outcome.output for outcome in outcomes if outcome.status.rejects)
        found = operator_of(case.problem).traced(case, adapter, wrong)
    except (ContractOverflow, UncertifiedError, ValueError):
        return None
    return None if found is None else Location(found.stage, f"by outputs alone: {found.reported}")
