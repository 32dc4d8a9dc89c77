"""The machine's view of a session: one JSON object whose keys other programs rely on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from kdaverify.report.published import tallies
from kdaverify.verdicts.decision import Decision, Ruling
from kdaverify.verdicts.verdict import Verdict


def summary(ruling: Ruling, decisions: Sequence[Decision]) -> dict[str, Any]:
    """The object that `verify --json` writes.

    Args:
        ruling: of the whole session.
        decisions: of every implementation.
    """
    return {
        "decision": ruling.value,
        "exit_code": ruling.exit_code,
        "implementations": [
            {
                "name": decision.implementation,
                "decision": decision.ruling.value,
                "reasons": list(decision.reasons),
                "cases": decision.cases,
                "skipped": decision.skipped,
                "grades": decision.grades,
                "vacuous": decision.vacuous,
                "acquitted": decision.acquitted,
                "less_accurate": [_less_accurate(verdict) for verdict in decision.less_accurate],
                "failures": [_failure(verdict) for verdict in decision.failures],
                "published": [asdict(tally) for tally in tallies(decision.verdicts)],
            }
            for decision in decisions
        ],
    }


def _less_accurate(verdict: Verdict) -> dict[str, Any]:
    told = ("property", "case", "output", "dtype", "regime", "digits_fewer", "replay")
    return {name: getattr(verdict, name) for name in told}


def _failure(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": verdict.case,
        "op": verdict.op,
        "output": verdict.output,
        "dtype": verdict.dtype,
        "regime": verdict.regime,
        "property": verdict.property,
        "status": verdict.status.value,
        # JSON has no infinity: null where nothing was allowed, or nothing compared.
        "ratio": verdict.ratio if verdict.ratio is not None and isfinite(verdict.ratio) else None,
        "stage": verdict.stage,
        "diagnosis": verdict.diagnosis,
        "same_as": verdict.same_as,
        "replay": verdict.replay,
    }
