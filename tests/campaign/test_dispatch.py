"""What a lost worker was doing is done again, with its kernel apart at last,
and given up only with a word.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.campaign.dispatch import dispatch
from kdaverify.campaign.engine import EngineError
from kdaverify.campaign.suite_tests import CONVENTIONS, PropertyTest
from kdaverify.campaign.task import Fixed, Orders
from tests.campaign.inline import FATAL, InlineEngine


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "port.py").write_text(FATAL)
    return Orders({"port": "port.py"}, "smoke", 0, str(tmp_path))


TASKS = [Fixed("port", CONVENTIONS), Fixed("port", CONVENTIONS)]


def test_a_lost_task_is_done_again_and_every_answer_comes_once(orders: Orders) -> None:
    engine = InlineEngine(orders, losses=(0,))
    answers = [answer for _, answer in dispatch(engine, iter(TASKS))]
    assert [answer.verdicts()[0].status.value for answer in answers] == ["PASS", "PASS"]
    assert [apart for _, apart in engine.tested] == [False, False, False]


def test_a_task_that_costs_two_workers_gets_a_process_for_its_kernel(orders: Orders) -> None:
    engine = InlineEngine(orders, losses=(0, 1))
    assert [answer.trouble for _, answer in dispatch(engine, iter(TASKS[:1]))] == [""]
    assert [apart for _, apart in engine.tested] == [False, False, True]


def test_a_task_that_costs_three_is_given_up_and_said_so(orders: Orders) -> None:
    engine = InlineEngine(orders, losses=(0, 1, 2))
    (answer,) = (answer for _, answer in dispatch(engine, iter(TASKS[:1])))
    assert not answer.rows and "3 workers were lost" in answer.trouble


def test_an_engine_that_keeps_no_worker_ends_the_campaign(orders: Orders) -> None:
    engine = InlineEngine(orders, losses=range(1000))
    with pytest.raises(EngineError, match="12 workers were lost in a row"):
        list(
            dispatch(
                engine, iter([Fixed("port", PropertyTest(f"p{number}")) for number in range(100)])
            )
        )


def test_what_breaks_in_the_harness_is_trouble_of_one_task(orders: Orders) -> None:
    engine = InlineEngine(orders)
    (broken, answer), (_, fine) = dispatch(engine, iter([Fixed("unknown", CONVENTIONS), TASKS[0]]))
    assert (
        broken.implementation == "unknown" and answer.trouble.startswith("KeyError") and fine.rows
    )
