"""The machine's view of a session: one JSON object whose keys other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from kdaverify.report.published import tallies
from kdaverify.report.reported_kinds import contrasts_of, random_failures, several_bugs
from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.decision import Decision, Ruling
from kdaverify.verdicts.seal import Account
from kdaverify.verdicts.verdict import Verdict


def write_json(path: Path | None, found: Callable[[], object]) -> None:
    """Writes what a command found where `--json` says, or nothing where it was not given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found(), indent=2) + "\n")


def summary(
    ruling: Ruling, decisions: Sequence[Decision], account: Account | None = None
) -> dict[str, Any]:
    """The object that `verify --json` writes.

    Args:
        ruling: of the whole session.
        decisions: of every implementation.
        account: of the session: which profile and seed it ran, and which code it judged.
    """
    return {
        "decision": ruling.value,
        "exit_code": ruling.exit_code,
        "profile": account and account.profile,
        "seed": account and account.seed,
        "implementations": [
            {
                "name": decision.implementation,
                "decision": decision.ruling.value,
                "reasons": list(decision.reasons),
                "cases": decision.cases,
                "skipped": decision.skipped,
                "grades": decision.grades,
                "judged": judged_code(account and account.judged.get(decision.implementation)),
                "vacuous": decision.vacuous,
                "acquitted": decision.passed_on_retest,
                "less_accurate": [_less_accurate(verdict) for verdict in decision.less_accurate],
                "bugs": [*several_bugs(decision.failures), *random_failures(decision.failures)],
                "common_factors": common_factors_of(decision),
                "rules": _rules_of(decision),
                "contrasts": contrasts_of(decision.failures),
                "failures": [_failure(verdict) for verdict in decision.failures],
                "published": [asdict(tally) for tally in tallies(decision.verdicts)],
            }
            for decision in decisions
        ],
    }


def judged_code(identity: CodeIdentity | None) -> dict[str, Any] | None:
    """The code that was judged, for machines."""
    return None if identity is None else {**asdict(identity), "dirty": identity.is_dirty}


def common_factors_of(decision: Decision) -> list[dict[str, Any]]:
    """What failing cases have in common; [] if nothing separates them from passing ones."""
    if decision.ruling is not Ruling.REJECT:
        return []
    # The command line starts without torch.
    from kdaverify.diagnosis.common_factor import common_factors

    return [
        {**asdict(found), "sentence": str(found)} for found in common_factors(decision.verdicts)
    ]


def _rules_of(decision: Decision) -> list[str]:
    if decision.ruling is not Ruling.REJECT:
        return []
    from kdaverify.diagnosis.failing_rules import failing_rules

    return failing_rules(decision.verdicts)


def _less_accurate(verdict: Verdict) -> dict[str, Any]:
    reported = ("property", "case", "output", "dtype", "regime", "digits_fewer", "replay")
    return {name: getattr(verdict, name) for name in reported}


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
        "contrast": verdict.contrast,
        "same_as": verdict.same_as,
        "replay": verdict.replay,
    }
