"""The study of intermediate buffers: what is too narrow is found, what is combined is measured,
what is known survives an interruption.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.designs.ascend import BIASED
from kdaverify.budgets.designs.catalogue import ASCEND_V3, TRITON_NPU_STATE
from kdaverify.budgets.formats import FORMATS, MAILBOX_FORMATS
from kdaverify.checks.mailboxes.bench import REGIMES, DesignTest
from kdaverify.checks.mailboxes.memory import Memory
from kdaverify.checks.mailboxes.own_check import ALLOWED, own_check
from kdaverify.checks.mailboxes.proposals import JUDGEMENTS, judge
from kdaverify.checks.mailboxes.search import Study
from kdaverify.report.mailboxes import as_data
from kdaverify.report.plots import front_svg

BF16, CONTRACT = FORMATS["bf16"], contract_from_name("chunk64-bf16")


@pytest.fixture(scope="module")
def bench() -> DesignTest:
    return DesignTest(TRITON_NPU_STATE, BF16, CONTRACT, ("one-gate", "zero"), 128, 16)


def test_the_design_is_within_budget_and_a_mailbox_too_narrow_is_not(bench: DesignTest) -> None:
    assert bench.trial({}).share <= 1
    for name in ("h", "v_gated", "S_delta"):
        narrow = bench.trial({name: MAILBOX_FORMATS["e4m3"]})
        assert narrow.share > 1
        assert narrow.worst[0] in ("one-gate", "zero")


def test_a_trial_is_the_same_every_time(bench: DesignTest) -> None:
    assert bench.trial({"h": FORMATS["fp16"]}) == bench.trial({"h": FORMATS["fp16"]})


def test_the_search_ends_with_a_measured_assignment_within_the_limit(bench: DesignTest) -> None:
    study = Study(bench, "forward", most=8)
    for _ in study.run():
        pass
    best = study.best
    assert best is not None
    assert study.moved(best) < study.moved(study.wide)
    again = bench.trial(best.formats)
    assert again.share == best.share <= 1
    shares = [trial.share for trial in study.front]
    assert shares == sorted(shares)
    assert as_data(study)["best"]["share"] == best.share
    assert front_svg(study).count("<circle") == study.tried + 1


def test_an_interrupted_search_reports_what_is_known(bench: DesignTest) -> None:
    study = Study(bench, "forward")
    assert len(list(islice(study.run(), 3))) == 3
    assert study.tried == 4
    assert len(study.singles) == 2
    assert study.best is not None


def test_a_limit_nothing_meets_leaves_no_answer(bench: DesignTest) -> None:
    study = Study(bench, "forward", limit=0.01, most=2)
    assert list(study.run())
    assert study.best is None
    assert study.combined == []


def test_an_overflow_that_no_mailbox_causes_is_refused_by_name() -> None:
    study = Study(DesignTest(ASCEND_V3, BF16, CONTRACT, ("deep",), 64, 8), "forward")
    assert list(study.run()) == []
    assert study.refused == {"deep": "K_div"}


def test_the_proposals_are_followed_but_where_the_state_or_its_outputs_would_be_lost() -> None:
    found = list(judge(DesignTest(TRITON_NPU_STATE, BF16, CONTRACT, tuple(REGIMES), 64, 16)))
    assert len(found) == JUDGEMENTS
    refused = {"P2, as the master", "P3, o as well"}
    assert {judgement.name for judgement in found if not judgement.yes} == refused
    saved = {judgement.name: judgement.saved for judgement in found}
    assert (saved["P1"], saved["P2"], saved["P1 + P2"], saved["P7"]) == (16, 32, 48, 72)


def test_a_long_memory_reports_a_narrow_state_and_an_eps_from_the_design() -> None:
    own, memory = ASCEND_V3.emulator(BF16), Memory(BF16)
    assert memory.drift(own).within
    narrow = memory.drift(replace(own, contract=replace(own.contract, carry=BF16)))
    biased = memory.drift(replace(own, stages=BIASED))
    assert not narrow.within
    assert not biased.within
    assert biased.bias > 0.5 > narrow.bias


def test_the_designs_own_check_passes_what_the_definition_does_not() -> None:
    found = own_check()
    assert found.apart <= ALLOWED < found.definition
    assert found.largest > 1e15
    assert found.condition > 1e15
    assert own_check(normalised=True).definition < ALLOWED
