"""Which outcomes of several calls stand for all, and where a message places a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from kdaverify.checks.outcome import Outcome, first_wrong_or_all, first_wrong_or_last, placed
from kdaverify.checks.status import Status

Chosen = Callable[[Iterable[list[Outcome]]], list[Outcome]]
PLAN = (("a", Status.PASS), ("b", Status.FAIL), ("c", Status.FAIL))


def calls(plan: Iterable[tuple[str, Status]], made: list[str]) -> Iterator[list[Outcome]]:
    for name, status in plan:
        made.append(name)
        yield [Outcome(name, status, name)]


@pytest.mark.parametrize("chosen", [first_wrong_or_all, first_wrong_or_last])
def test_the_first_wrong_call_is_the_last_one_made(chosen: Chosen) -> None:
    made = list[str]()
    assert [outcome.output for outcome in chosen(calls(PLAN, made))] == ["b"]
    assert made == ["a", "b"]


@pytest.mark.parametrize(
    ("chosen", "wanted"), [(first_wrong_or_all, ["a", "d"]), (first_wrong_or_last, ["d"])]
)
def test_of_right_calls_all_or_the_last_stand(chosen: Chosen, wanted: list[str]) -> None:
    plan = (("a", Status.PASS), ("d", Status.SKIP))
    assert [outcome.output for outcome in chosen(calls(plan, []))] == wanted
    assert chosen(()) == []


def test_a_place_stands_behind_every_message_where_one_is_wrong() -> None:
    (right,), (wrong,), _ = calls(PLAN, [])
    assert placed([right], ", there") == [right]
    assert [one.message for one in placed([right, wrong], ", there")] == ["a, there", "b, there"]
