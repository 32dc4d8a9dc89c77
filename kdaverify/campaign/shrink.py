"""A smaller case that fails alike, found by Hypothesis on the choices that drew the first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hypothesis import Phase, Verbosity, find, settings
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import NoSuchExample

from kdaverify.campaign.cases import RandomCase
from kdaverify.campaign.suite_tests import PropertyTest
from kdaverify.internals import BACKEND, shelve
from kdaverify.verdicts.recheck import only_near
from kdaverify.verdicts.verdict import Verdict

MOST_TRIES: Final = 60
"""Cases judged on the way down."""
_KEY: Final = b"case"


def shrunk(
    case: RandomCase, judge: Callable[[PropertyTest], list[Verdict]], output: str, status: str
) -> list[Verdict]:
    """The smallest case's verdicts that reject `output` with `status` beyond doubt, or [].

    Args:
        judge: verdicts of one question, borderline ones undecided: 200 seeds each otherwise.
    """
    seen: dict[tuple[PropertyTest, ...], list[Verdict]] = {}

    def fails(tests: tuple[PropertyTest, ...]) -> bool:
        if tests not in seen:
            if len(seen) == MOST_TRIES:
                return False
            seen[tests] = [verdict for test in tests for verdict in judge(test)]
        rejecting = [verdict for verdict in seen[tests] if verdict.status.rejects]
        return not only_near(rejecting) and any(
            (v.output, v.status) == (output, status) for v in rejecting
        )

    database = InMemoryExampleDatabase()
    shelve(database, _KEY, case.choices)
    tested = settings(
        database=database,
        phases=(Phase.reuse, Phase.shrink),
        deadline=None,
        backend=BACKEND,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    try:
        return seen[find(case.question.strategy(), fails, settings=tested, database_key=_KEY)]
    except NoSuchExample:
        return []
