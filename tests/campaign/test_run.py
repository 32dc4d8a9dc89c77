"""A campaign's record says the same whatever ended it on the way,
and however many workers wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kdaverify.adapters.registry import find
from kdaverify.campaign.engine_local import LocalEngine
from kdaverify.campaign.run import CampaignRun
from kdaverify.campaign.tally import CampaignCounts
from kdaverify.campaign.task import Orders, Smaller
from kdaverify.campaign.worker import CampaignSubject
from kdaverify.checks.status import Status
from kdaverify.diagnosis.words import names_of
from kdaverify.verdicts.record import RecordError
from tests.campaign.inline import FATAL, InlineEngine, reported
from tests.rows import row

pytestmark = pytest.mark.whole_run

CASES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("campaign")
    (found / "port.py").write_text(FATAL)
    return found


@pytest.fixture(scope="module")
def orders(folder: Path) -> Orders:
    return Orders({"port": str(folder / "port.py")}, "smoke", 3, str(folder), isolate=False)


def ran(orders: Orders, record: Path, cases: int = CASES) -> CampaignRun:
    run = CampaignRun(orders, cases=cases, record=record)
    with closing(InlineEngine(orders)) as engine:
        run.run(engine, lambda _: None)
    return run


@pytest.fixture(scope="module")
def whole(folder: Path, orders: Orders, monkeypatch_module: pytest.MonkeyPatch) -> Path:
    """The record of a campaign that nothing interrupted."""
    monkeypatch_module.chdir(folder)
    run = ran(orders, folder / "whole.jsonl")
    assert not run.tally.kinds and len(run.tally.done) == CASES + 1
    return folder / "whole.jsonl"


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("left", [0.1, 0.45, 0.8, 0.999])
def test_a_campaign_cut_off_at_any_byte_ends_in_the_same_record(
    left: float, orders: Orders, whole: Path, tmp_path: Path
) -> None:
    content, record = whole.read_bytes(), tmp_path / "r.jsonl"
    record.write_bytes(content[: int(left * len(content))])
    ran(orders, record)
    assert reported(record) == reported(whole)


def test_a_campaign_of_fewer_cases_goes_on_to_more(
    orders: Orders, whole: Path, tmp_path: Path
) -> None:
    record = tmp_path / "r.jsonl"
    ran(orders, record, cases=3)
    ran(orders, record)
    assert reported(record) == reported(whole)


def test_two_processes_one_of_which_is_killed_give_the_same_record(
    orders: Orders, whole: Path, folder: Path, tmp_path: Path
) -> None:
    (folder / "fatal").touch()
    run = CampaignRun(orders, cases=CASES, record=tmp_path / "r.jsonl")
    with closing(LocalEngine(orders, places=2)) as engine:
        run.run(engine, lambda _: None)
    assert not (folder / "fatal").exists()
    assert reported(tmp_path / "r.jsonl") == reported(whole)


def test_the_record_of_another_run_is_refused(folder: Path, orders: Orders, whole: Path) -> None:
    other = Orders(orders.specs, "smoke", 4, str(folder))
    with pytest.raises(RecordError, match="is of seed 3, this run of 4"):
        CampaignRun(other, cases=1, record=whole)
    with pytest.raises(RecordError, match="is another one there"):
        CampaignRun(Orders(orders.specs, "acceptance", 3, str(folder)), cases=1, record=whole)
    with pytest.raises(RecordError, match="holds cases that this run does not have"):
        CampaignRun(Orders({"eager": "eager"}, "smoke", 3, str(folder)), cases=1, record=whole)
    with pytest.raises(RecordError, match=r"ending in \.jsonl"):
        CampaignRun(orders, cases=1, record=folder / "r.parquet")


def test_a_failure_is_made_smaller_as_the_suites_would(folder: Path) -> None:
    # The planted fault: o is a tenth too large where there are ten tokens or more.
    wrong = FATAL.replace('"port"', '"wrong"').replace(
        "o.to(q.dtype)", "o.to(q.dtype) * (1 + 0.1 * (o.shape[1] > 9))"
    )
    (folder / "wrong.py").write_text(wrong)
    spec = str(folder / "wrong.py")
    bench = CampaignSubject(
        find(spec), spec, Orders({"wrong": spec}, "smoke", 3, str(folder), isolate=False)
    )
    forward = (
        number for number in range(1000) if bench.case(number).question.property == "forward"
    )
    found = next(
        filter(None, (bench.verdicts(Smaller("wrong", number, "o", "FAIL")) for number in forward))
    )
    assert {verdict.output: verdict.status.rejects for verdict in found} == {
        "o": True,
        "final_state": False,
    }
    assert all('"T":10,' in verdict.problem and '"K":1,' in verdict.problem for verdict in found)


def test_failures_of_one_kind_are_reported_once_by_the_cheapest_whatever_their_order() -> None:
    solve = [
        row(
            Status.FAIL,
            stage="solve",
            number=n,
            case=f"kda-{n}",
            property=("forward", "resume")[n % 2],
            problem="",
        )
        for n in range(4)
    ]
    other = row(Status.FAIL, stage="intra", number=9, problem="")
    for rows in ([*solve, other], [other, *reversed(solve)]):
        tally = CampaignCounts(9)
        tally.take(rows)
        first, second = tally.ranked()
        assert (first.verdicts, first.representative.number, first.properties) == (
            4,
            0,
            {"forward", "resume"},
        )
        assert (second.verdicts, second.representative) == (1, other)


def test_kinds_that_a_diagnosis_names_alike_are_one_and_others_stay_apart() -> None:
    named = "SO1, a row too few, or known bug SO2, a row too many; in short: x (y)"
    said = f"matches known bug {named} (residual {{}} %; no other candidate); only late"
    tally = CampaignCounts(9)
    tally.take(
        [
            row(Status.FAIL, output=output, number=n, case=f"kda-{n}", problem="")
            for n, output in enumerate(("o", "dq", "dk"))
        ]
    )
    diagnoses = (said.format("0.01"), said.format("2e-05"), "no known bug matches")
    for kind, words in zip(tally.ranked(), diagnoses, strict=True):
        kind.diagnosis = words
    tally.join()
    assert sorted(kind.verdicts for kind in tally.ranked()) == [1, 2]
    assert (
        names_of(said.format("1")) == ("SO1, a row too few", "SO2, a row too many")
        and names_of("no known bug matches: o") == ()
    )
