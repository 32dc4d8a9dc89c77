"""The diagnosis of a second bug of the same call: of a failure that the first one does not explain.

Both bugs are in it, and no known one matches. It is made smaller while the first leaves a part of
the error: an empty sequence, in which a wrong decay has no effect, shows the second alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from kdaverify.adapters.base import Adapter
from kdaverify.checks.properties import check
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.diagnosis import Diagnosis
from kdaverify.diagnosis.minimise import failure, minimise
from kdaverify.diagnosis.question import PropertyCase, as_called
from kdaverify.diagnosis.remainder import CLEAR, share_left


@dataclass(frozen=True)
class SecondBug:
    """What else is wrong.

    Args:
        diagnosis: of the smallest case that the first bug does not explain.
        outputs: that fail in it.
    """

    diagnosis: Diagnosis
    outputs: tuple[str, ...]


def second_bug(
    adapter: Adapter, first: Diagnosis, case: PropertyCase, *, seconds: float
) -> SecondBug | None:
    """What is wrong in a case that the bugs of `first` do not explain; None where no known bug
    matches: the error of two is that of neither, and its analysis would be of both.

    Args:
        seconds: half of them to find a smaller case; what is begun is ended.
    """
    started, failed = time.monotonic(), failure(adapter, case)
    if failed is None or failed[1].takes_process or not adapter.open_ended:
        return None

    def is_left(smaller: PropertyCase) -> bool:
        share = share_left(adapter, first, as_called(smaller, adapter))
        return share is not None and share > CLEAR

    smallest = minimise(adapter, case, until=started + seconds / 2, failed=failed, also=is_left)
    rest = max(started + seconds - time.monotonic(), seconds / 4)
    found = diagnose(adapter, smallest, seconds=rest, shrinks=False)
    known = {match.suspect.fault.id for match in first.named}
    if not found.fits or known & {match.suspect.fault.id for match in found.named}:
        return None
    outcomes = check(smallest.property, adapter, smallest.problem, smallest.detail)
    return SecondBug(found, tuple(one.output for one in outcomes if one.status.rejects))
