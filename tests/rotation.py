"""Which of many like cases a commit runs: one in ten or fewer, chosen by the commit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

SHARE: Final = 10
"""One in this many cases of a test that rotates runs a commit: each runs again within a day of
work, fifty commits and more, and what all of them share is tested by every commit. Tests that take
minutes give a share of their own."""


def turn(cases: Mapping[str, int], commit: str) -> set[str]:
    """The cases that a commit runs: the same on every worker and machine.

    Of every test at least one case, so that none of them goes untested.

    Args:
        cases: by node id, of any number of tests, one in how many cases of the test runs.
        commit: its hash, or anything else that moves the choice.
    """
    by_test: dict[str, list[str]] = {}
    for case in cases:
        by_test.setdefault(case.partition("[")[0], []).append(case)

    def place(case: str) -> bytes:
        return hashlib.sha256(f"{commit} {case}".encode()).digest()

    return {
        case
        for like in by_test.values()
        for case in sorted(like, key=place)[: -(-len(like) // cases[like[0]])]
    }
