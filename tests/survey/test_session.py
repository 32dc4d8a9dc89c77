"""A survey judges what has no finished record, and takes the others as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kdaverify.adapters.registry import Listing
from kdaverify.survey.session import NOT_REACHED, SurveyPlan, SurveyStep, runnable, survey
from kdaverify.survey.state import state_of

pytestmark = pytest.mark.whole_run
NAME = "torch-gated-norm"


def run(plan: SurveyPlan) -> list[SurveyStep]:
    steps: list[SurveyStep] = []
    survey(plan, lambda _, step: steps.append(step))
    return steps


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> SurveyPlan:
    return SurveyPlan(
        (NAME,), "smoke", 0, tmp_path_factory.mktemp("survey"), 300.0, "0", commit="c0ffee"
    )


def test_a_survey_resumes_and_repeats_its_decisions(plan: SurveyPlan) -> None:
    assert [step.outcome for step in run(plan)] == ["accept"]
    path = plan.record(NAME)
    first = state_of([path], [], {})
    assert [one.commit for one in first.implementations] == ["c0ffee"]
    assert [step.outcome for step in run(plan)] == ["taken from its record"]
    # Cut off in the middle, as by kill -9: the record has no seal, and its session is repeated.
    path.write_bytes(path.read_bytes()[:20_000])
    assert [step.outcome for step in run(plan)] == ["accept"]
    again = state_of([path], [], {})
    judged = [one.model_dump(exclude={"seconds", "finished"}) for one in again.implementations]
    before = [one.model_dump(exclude={"seconds", "finished"}) for one in first.implementations]
    assert judged == before
    assert not [*path.parent.glob("running-*")]


def test_a_session_that_takes_too_long_is_ended_and_said_to_be(
    plan: SurveyPlan, tmp_path: Path
) -> None:
    [step] = run(replace(plan, folder=tmp_path, seconds=2.0))
    assert step.outcome.startswith("ended after 2 s; its output is in")


def test_no_session_begins_after_the_minutes_of_a_survey(plan: SurveyPlan, tmp_path: Path) -> None:
    steps = run(replace(plan, folder=tmp_path, minutes=-1.0))
    assert [step.outcome for step in steps] == [NOT_REACHED]
    assert [*tmp_path.iterdir()] == []


def test_designs_are_no_implementations_and_what_cannot_run_has_a_reason() -> None:
    listings = [
        Listing("eager", "shipped", ("fp32",), None),
        Listing("emulated:ascend_v1", "shipped", ("fp32",), None),
        Listing("cudnn", "shipped", ("bf16",), "not installed"),
    ]
    assert runnable(listings) == (("eager",), {"cudnn": "not installed"})
    more = [*listings, Listing("torch-flex", "shipped", ("fp32",), None)]
    assert runnable(more, ("torch-flex", "eager")) == (("torch-flex", "eager"), {})
    assert runnable(listings, ("cudnn",)) == ((), {"cudnn": "not installed"})
