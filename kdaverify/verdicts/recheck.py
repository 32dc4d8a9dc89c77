"""Verdicts whose borderline failures have been run again at fresh seeds, each case once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.borderline import SETTLED, Recheck, RetestFinding, is_near
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.recheck import LARGEST, THERE_AND_BACK, recheck, undecided
from kdaverify.checks.status import Status
from kdaverify.operator import operator_named, problem_from_json
from kdaverify.verdicts.verdict import Verdict

FILED: Final = "its outputs come from files, which answer no other seed"


def only_near(case: Sequence[Verdict]) -> bool:
    """Whether the outputs of one case have borderline failures, and nothing worse."""
    wrong = [verdict for verdict in case if verdict.status.rejects]
    return bool(wrong) and all(_is_near(verdict) for verdict in wrong)


def certain(verdicts: Sequence[Verdict]) -> bool:
    """Whether one fails by more than sampling variation, or fresh seeds confirmed it."""
    return any(
        verdict.status.rejects and not _is_near(verdict) and not verdict.left_open()
        for verdict in verdicts
    )


def rechecked(
    verdicts: Sequence[Verdict], adapter: Adapter, *, settled: bool = False
) -> list[Verdict]:
    """The same verdicts; borderline failures carry fresh seeds' results, and may pass.

    Once one is confirmed, or where another case is worse, what is left is not run again and stays a
    failure.

    Args:
        verdicts: of `adapter`, the outputs of a case together.
        settled: whether another test found a case that is worse. 200 seeds for each of three
            borderline failures were three quarters of the time of a rejection.
    """
    cases = [list(case) for _, case in groupby(verdicts, key=lambda verdict: verdict.case_key())]
    known: dict[tuple[str, str, str, str], dict[str, Recheck]] = {}
    wrong = settled or any(
        verdict.status.rejects for case in cases if not only_near(case) for verdict in case
    )
    for case in cases:
        if only_near(case) and case[0].case_key() not in known:
            near = [verdict.output for verdict in case if verdict.status.rejects]
            if wrong:
                found = {name: undecided(SETTLED) for name in near}
            else:
                found = _again(case[0], near, adapter)
            wrong = wrong or any(
                reported.finding is RetestFinding.CONFIRMED for reported in found.values()
            )
            known[case[0].case_key()] = found
    return [
        _with(verdict, known.get(verdict.case_key(), {}).get(verdict.output))
        for case in cases
        for verdict in case
    ]


def _again(first: Verdict, outputs: list[str], adapter: Adapter) -> dict[str, Recheck]:
    if not adapter.open_ended:
        return {name: undecided(FILED) for name in outputs}

    def judge(problem: Any) -> list[Outcome]:
        return check(first.property, adapter, problem, first.detail)

    back = any(name in operator_named(first.op).signature.gradients for name in outputs)
    largest = LARGEST * (THERE_AND_BACK if back else 1)
    return recheck(judge, problem_from_json(first.problem), outputs, largest=largest)


def _is_near(verdict: Verdict) -> bool:
    tested = operator_named(verdict.op).resampled and verdict.problem and verdict.recheck is None
    return bool(tested) and is_near(verdict.status, verdict.statistic, verdict.ratio)


def _with(verdict: Verdict, found: Recheck | None) -> Verdict:
    """The first figure stays; conclusion, grade and message follow the fresh seeds."""
    if found is None or not verdict.status.rejects:
        return verdict
    head, _, rest = verdict.message.partition("\n")
    reported = {"recheck": found, "message": "\n".join(filter(None, (head, f"  {found}", rest)))}
    if found.finding is not RetestFinding.PASSED_ON_RETEST:
        return verdict.model_copy(update=reported)
    return verdict.model_copy(update={**reported, "status": Status.PASS, "grade": found.grade})
