"""A campaign's record says the same whatever ended it on the way, and however many workers wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kdaverify.campaign.engine_local import LocalEngine
from kdaverify.campaign.run import Run
from kdaverify.campaign.task import Orders
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.record import RecordError
from tests.campaign.inline import FATAL, InlineEngine, told

CASES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("campaign")
    (found / "port.py").write_text(FATAL)
    return found


@pytest.fixture(scope="module")
def orders(folder: Path) -> Orders:
    return Orders({"port": str(folder / "port.py")}, "smoke", 3, str(folder), isolate=False)


def ran(orders: Orders, record: Path, cases: int = CASES) -> Run:
    run = Run(orders, cases=cases, record=record)
    with InlineEngine(orders) as engine:
        run.ask(engine, lambda _: None)
    return run


@pytest.fixture(scope="module")
def whole(folder: Path, orders: Orders, monkeypatch_module: pytest.MonkeyPatch) -> Path:
    """The record of a campaign that nothing interrupted."""
    monkeypatch_module.chdir(folder)
    run = ran(orders, folder / "whole.jsonl")
    assert run.tally.ruling(orders.specs) is Ruling.ACCEPT and len(run.tally.done) == CASES + 1
    return folder / "whole.jsonl"


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("left", [0.1, 0.45, 0.8, 0.999])
def test_a_campaign_cut_off_at_any_byte_ends_in_the_same_record(left: float, orders: Orders, whole: Path, tmp_path: Path) -> None:
    content, record = whole.read_bytes(), tmp_path / "r.jsonl"
    record.write_bytes(content[: int(left * len(content))])
    ran(orders, record)
    assert told(record) == told(whole)


def test_a_campaign_of_fewer_cases_goes_on_to_more(orders: Orders, whole: Path, tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    ran(orders, record, cases=3)
    ran(orders, record)
    assert told(record) == told(whole)


def test_two_processes_one_of_which_is_killed_give_the_same_record(orders: Orders, whole: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "fatal").touch()
    run = Run(orders, cases=CASES, record=tmp_path / "r.jsonl")
    with LocalEngine(orders, places=2) as engine:
        run.ask(engine, lambda _: None)
    assert not (folder / "fatal").exists()
    assert told(tmp_path / "r.jsonl") == told(whole)


def test_the_record_of_another_run_is_refused(folder: Path, orders: Orders, whole: Path) -> None:
    other = Orders(orders.specs, "smoke", 4, str(folder))
    with pytest.raises(RecordError, match="is of seed 3, this run of 4"):
        Run(other, cases=1, record=whole)
    with pytest.raises(RecordError, match="is another one there"):
        Run(Orders({"eager": "eager"}, "smoke", 3, str(folder)), cases=1, record=whole)
    with pytest.raises(RecordError, match=r"ending in \.jsonl"):
        Run(orders, cases=1, record=folder / "r.parquet")


def test_failures_of_one_kind_are_told_once_with_a_smaller_case(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdaverify.campaign.run.MOST_SMALLER", 1)
    # The planted fault: o is a tenth too large where there are ten tokens or more.
    (folder / "wrong.py").write_text(
        FATAL.replace('"port"', '"wrong"').replace("o.to(q.dtype)", "o.to(q.dtype) * (1 + 0.1 * (o.shape[1] > 9))")
    )
    orders = Orders({"wrong": str(folder / "wrong.py")}, "smoke", 3, str(folder), isolate=False)
    run = Run(orders, cases=4, record=tmp_path / "r.jsonl")
    with InlineEngine(orders) as engine:
        run.ask(engine, lambda _: None)
        run.shrink(engine, lambda _: None)
    assert run.tally.ruling(orders.specs) is Ruling.REJECT
    kinds = run.tally.ranked()
    assert sum(kind.verdicts for kind in kinds) > len(kinds)
    (smaller,) = (kind.smaller for kind in kinds if kind.smaller is not None)
    assert smaller.status.rejects and '"T":10,' in smaller.problem and '"K":1,' in smaller.problem
