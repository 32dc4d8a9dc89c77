"""All cases of a profile for one implementation, and the verdicts of one of them: what the
benchmarks of whole profiles share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from kdaverify.adapters.base import Adapter
from kdaverify.campaign.cases import case
from kdaverify.campaign.suite_tests import CONVENTIONS, PropertyTest, questions
from kdaverify.operator import problem_from_json
from kdaverify.problems.profiles import settings_for
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.verdict import Verdict


def property_tests(adapter: Adapter, profile: str, seed: int = 0) -> Iterator[PropertyTest]:
    """The fixed cases, then as many random ones as the suites draw.

    Args:
        seed: of the random ones.
    """
    for question in questions(adapter, profile, random=False):
        yield from question.property_tests()
    random = questions(adapter, profile, random=True)
    for number in range(settings_for(profile).max_examples * len(random)):
        yield from case(random, seed, number).tests


def verdicts(adapter: Adapter, test: PropertyTest, spec: str) -> list[Verdict]:
    """Those of one case.

    Args:
        spec: how replay lines name the implementation.
    """
    found = list[Verdict]()
    judge = Judge(adapter, found.append, test.property, spec=spec, published=False, fits=True)
    with suppress(Rejected, FatalRejection):
        (
            judge.conventions()
            if test == CONVENTIONS
            else judge(problem_from_json(test.problem), **json.loads(test.detail))
        )
    return found
