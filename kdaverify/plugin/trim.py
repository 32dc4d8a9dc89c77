"""What stays of a test's verdicts once Hypothesis has shrunk a failure: how it looked first, and
how small it got.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kdaverify.verdicts.verdict import Verdict


def trim(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Every verdict up to the first failing case, that case, and the last failing one;
    not the shrinking attempts between.
    """
    calls = [tuple(group) for _, group in groupby(verdicts, key=lambda verdict: verdict.case_key())]
    failing = [
        number
        for number, call in enumerate(calls)
        if any(verdict.status.rejects for verdict in call)
    ]
    if not failing:
        return tuple(verdicts)
    first, last = failing[0], failing[-1]
    kept = [verdict for call in calls[: first + 1] for verdict in _once(call)]
    return (
        tuple(kept)
        if calls[last][0].case_key() == calls[first][0].case_key()
        else (*kept, *_once(calls[last]))
    )


def _once(call: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """One verdict an output, for a case that ran again to confirm it;
    one that rejects, if any did.
    """
    kept: dict[str, Verdict] = {}
    for verdict in call:
        if verdict.output not in kept or verdict.status.rejects:
            kept[verdict.output] = verdict
    return tuple(kept.values())
