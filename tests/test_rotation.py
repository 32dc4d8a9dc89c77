"""The rotation of like cases: replayable, a third of each test, none for ever."""

from __future__ import annotations

from collections import Counter

from tests.rotation import turn

CASES = [
    f"a.py::test_{test}[{case}]" for test, many in (("p", 9), ("q", 2)) for case in range(many)
]


def test_a_commit_runs_a_third_of_every_test_and_at_least_one_case() -> None:
    for commit in map(str, range(20)):
        chosen = turn(CASES, commit)
        assert Counter(case.partition("[")[0] for case in chosen) == {
            "a.py::test_p": 3,
            "a.py::test_q": 1,
        }
        assert chosen == turn(reversed(CASES), commit)


def test_every_case_has_its_turn() -> None:
    assert set[str]().union(*(turn(CASES, str(commit)) for commit in range(20))) == {*CASES}
