"""Which case is number i of seed s: the same on every machine, whatever was asked before."""

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
    """A suite whose filters leave nothing of what it draws."""


@dataclass(frozen=True)
class RandomCase:
    """One drawn case.

    Args:
        question: the test that asks it, under which choice of its axes.
        asks: what it asks.
        choices: what Hypothesis drew, from which a smaller case can be looked for.
    """

    question: SuiteTest
    asks: tuple[PropertyTest, ...]
    choices: tuple[Any, ...]


def case(questions: Sequence[SuiteTest], seed: int, number: int) -> RandomCase:
    """Case `number` of `seed`.

    Every question is as likely as any other, as in a session of the suites, and each case comes from a digest of seed and number.

    Args:
        questions: drawn ones, of one implementation.
    Raises:
        UndrawableError: the question drawn asks nothing.
    """
    question = questions[_random(f"{seed}:{number}").randrange(len(questions))]
    for attempt in range(TRIES):
        found = generated(question.strategy(), _random(f"{seed}:{number}:{attempt}"))
        if found is not None:
            return RandomCase(question, *found)
    raise UndrawableError(f"suite {question.property}: {TRIES} draws for {dict(question.chosen)} gave no problem that it asks")


def _random(text: str) -> Random:
    return Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))  # noqa: S311 # problems, not secrets
