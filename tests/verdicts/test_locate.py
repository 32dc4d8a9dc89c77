"""Verdicts that reject get the first wrong stage, once a case;
nothing is run where nothing can be found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdaverify.adapters import find
from kdaverify.checks.location import NoStage
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cost
from kdaverify.verdicts import locate
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.locate import LARGEST, localises, located
from kdaverify.verdicts.verdict import Verdict
from tests.checks import staged
from tests.checks.staged import Staged, tables
from tests.checks.test_stages import Fused, problem
from tests.rows import row

NEUMANN = tables(solve=staged.truncated_neumann)
TESTED = problem(gate="slow", T=20, lengths=None)


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Every problem that is localised."""
    seen: list[Problem] = []
    real = locate.localise

    def noting(adapter: Any, which: Problem, *rest: Any) -> Any:
        seen.append(which)
        return real(adapter, which, *rest)

    monkeypatch.setattr(locate, "localise", noting)
    return seen


def failing(status: Status = Status.FAIL, **fields: Any) -> Verdict:
    return row(
        status, **{"case": TESTED.id, "problem": TESTED.to_json(), "dtype": TESTED.dtype, **fields}
    )


def test_every_case_that_fails_is_localised_once_for_all_its_outputs(tested: list[Problem]) -> None:
    rows = [
        failing(Status.PASS, case="right"),
        failing(),
        failing(output="final_state"),
        failing(Status.PASS, output="other"),
    ]
    reported = located(
        [*rows, failing(property="resume", detail={"cut": 3})], Staged("neumann", NEUMANN)
    )
    assert [verdict.stage for verdict in reported] == [None, "solve", "solve", None, "solve"]
    assert tested == [TESTED, TESTED]
    assert reported[1].whereabouts().startswith("first wrong stage: solve, on exact inputs; R: ")
    assert reported[4].located.endswith("tested on one uncut run")


def test_an_operation_beside_the_kernel_is_its_own_stage(tested: list[Problem]) -> None:
    rows = [
        failing(Status.PASS, op="gate_softplus", output="g"),
        failing(op="gate_softplus", output="dz"),
    ]
    assert [verdict.stage for verdict in located(rows, find("eager"))] == [None, "gate_softplus"]
    assert not tested and not localises(rows)


@pytest.mark.parametrize("status", [status for status in Status if not status.localised])
def test_what_is_no_stage_s_fault_or_took_its_process_is_not_localised(
    status: Status, tested: list[Problem]
) -> None:
    reported = located(
        [failing(status), *([failing(output="final_state")] if status.takes_process else [])],
        find("eager"),
    )
    assert not tested and {verdict.stage for verdict in reported} == {None}
    assert {verdict.whereabouts() for verdict in reported} == {""}


def test_a_kernel_without_stages_says_so() -> None:
    (reported,) = located([failing()], find("eager-recurrent"))
    assert (reported.stage, reported.whereabouts(), reported.names_stage()) == (
        NoStage.NONE_EXPOSED,
        "stages: none exposed",
        False,
    )


def test_a_fault_between_right_stages_is_reported_as_such() -> None:
    (reported,) = located([failing()], find("eager"))
    assert (
        reported.whereabouts()
        == "stages: all within budget; cumsum, scores, solve, wy, state, output"
    )


def test_of_judged_stages_the_stage_is_the_output_s_own(tested: list[Problem]) -> None:
    def judged(adapter: Staged) -> list[str | None]:
        found: list[Verdict] = []
        with pytest.raises(Rejected):
            Judge(adapter, found.append, "stages")(TESTED, feed="own")
        return [verdict.stage for verdict in located(found, adapter) if verdict.status.rejects]

    assert set(judged(Staged("neumann", NEUMANN))) == {"solve"}
    assert judged(Fused("fused", NEUMANN)) == ["intra (R)", "intra (w)", "intra (u)"]
    assert not tested


def test_a_case_too_large_for_a_session_says_where_its_stages_are_reported(
    tested: list[Problem],
) -> None:
    large = TESTED.replace(T=8128, H=32, HV=32, K=128, V=128)
    assert cost(TESTED) < LARGEST < cost(large)
    (reported,) = located([failing(problem=large.to_json(), case=large.id)], find("eager"))
    assert (reported.stage, reported.located) == (
        "not judged",
        "too large to go through stage by stage in a session; its replay does",
    )
    assert not tested


def test_a_conforming_kernel_never_gets_a_stage() -> None:
    found: list[Verdict] = []
    Judge(find("eager"), found.append, "forward")(TESTED)
    assert not localises(found) and located(found, find("eager")) == found
    assert {verdict.stage for verdict in found} == {None}


def test_what_a_stage_raises_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*tested: Any) -> Callable[..., Any]:
        raise KeyError("ours")

    monkeypatch.setattr("kdaverify.checks.stages.stage_standard", broken)
    (reported,) = located([failing()], Staged("neumann", NEUMANN))
    assert (
        reported.status is Status.FAIL
        and reported.stage == NoStage.NOT_JUDGED
        and reported.located.startswith("KeyError: 'ours'")
    )
