"""Which case is number i of seed s: the same on every machine, whatever was tested before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from kdaverify.campaign.suite_tests import PropertyTest, SuiteTest
from kdaverify.internals import generated

TRIES: Final = 1000


class UndrawableError(RuntimeError):
    """A suite whose filters reject all cases that it generates."""


@dataclass(frozen=True)
class RandomCase:
    """One random case.

    Args:
        question: the test, under which choice of its axes.
        tests: what it tests.
        choices: what Hypothesis drew, from which a smaller case can be looked for.
    """

    question: SuiteTest
    tests: tuple[PropertyTest, ...]
    choices: tuple[Any, ...]


def case(questions: Sequence[SuiteTest], seed: int, number: int) -> RandomCase:
    """Case `number` of `seed`.

    Every test is as likely as any other, as in a session of the suites, and each case comes
    from a digest of seed and number.

    Args:
        questions: random ones, of one implementation.
    Raises:
        UndrawableError: the test has no case.
    """
    question = questions[_random(f"{seed}:{number}").randrange(len(questions))]
    for attempt in range(TRIES):
        found = generated(question.strategy(), _random(f"{seed}:{number}:{attempt}"))
        if found is not None:
            return RandomCase(question, *found)
    raise UndrawableError(
        f"suite {question.property}: {TRIES} {dict(question.chosen)} samples gave no problem that"
        " it tests"
    )


def _random(text: str) -> Random:
    # problems, not secrets
    return Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))  # noqa: S311
