"""The rotation of like cases: replayable, a share of each test, none for ever."""

from __future__ import annotations

from collections import Counter

from tests.rotation import turn

CASES = {
    f"a.py::test_{test}[{case}]": share
    for test, many, share in (("p", 9, 3), ("q", 2, 3), ("r", 12, 6))
    for case in range(many)
}


def test_a_commit_runs_the_share_of_every_test_and_at_least_one_case() -> None:
    for commit in map(str, range(20)):
        chosen = turn(CASES, commit)
        assert Counter(case.partition("[")[0] for case in chosen) == {
            "a.py::test_p": 3,
            "a.py::test_q": 1,
            "a.py::test_r": 2,
        }
        assert chosen == turn(dict(reversed(CASES.items())), commit)


def test_every_case_has_its_turn() -> None:
    assert set[str]().union(*(turn(CASES, str(commit)) for commit in range(40))) == {*CASES}
