"""Workers of Ray give the verdicts of any other worker, also when one of them is killed."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from kdaverify.campaign.engine import EngineError
from kdaverify.campaign.run import CampaignRun
from kdaverify.campaign.task import Orders
from tests.campaign.inline import FATAL, InlineEngine, reported
from tests.test_package import imported_by

pytestmark = pytest.mark.whole_run

CASES = 2


# Ray forks to start its processes, which JAX warns of where an earlier test has imported it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_an_actor_that_is_killed_and_the_one_after_it_give_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from kdaverify.campaign.engine_ray import RayEngine

    (tmp_path / "port.py").write_text(FATAL)
    orders = Orders({"port": str(tmp_path / "port.py")}, "smoke", 3, str(tmp_path), isolate=False)
    here, there = (
        CampaignRun(orders, cases=CASES, record=tmp_path / name)
        for name in ("here.jsonl", "there.jsonl")
    )
    # A worker goes where the user stands; this one takes the test with it.
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        with closing(InlineEngine(orders)) as engine:
            here.run(engine, lambda _: None)
    (tmp_path / "fatal").touch()
    with closing(RayEngine(orders, places=1)) as engine:
        there.run(engine, lambda _: None)
    assert not there.tally.trouble
    assert not (tmp_path / "fatal").exists() and not ray.is_initialized()
    assert reported(tmp_path / "there.jsonl") == reported(tmp_path / "here.jsonl")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kdaverify.campaign.engine_ray import RayEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"kdaverify\[ray\]"):
        RayEngine(Orders({}, "smoke", 0, str(tmp_path)), places=1)


def test_only_the_engine_that_is_tested_for_imports_ray() -> None:
    assert "ray" not in imported_by(
        "import kdaverify.cli.campaign, kdaverify.campaign.run, kdaverify.campaign.engine_local"
    )
