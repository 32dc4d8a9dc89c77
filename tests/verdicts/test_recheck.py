"""Borderline failures of a session: each case once, the same every time, the first figure kept;
whoever judges at once gets the end of it.
"""

from __future__ import annotations

import pytest

from kdaverify.checks import recheck as fresh_seeds
from kdaverify.checks.borderline import SETTLED, Recheck, RetestFinding
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.verdicts import recheck as rechecking
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.recheck import FILED, only_near, rechecked
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row
from tests.verdicts.louder import PROBLEM, Louder, factor_for


@pytest.fixture(autouse=True)
def few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is tested beside `recheck`; here it may cost little."""
    monkeypatch.setattr(fresh_seeds, "SEEDS", 20)
    monkeypatch.setattr(fresh_seeds, "LOOKS", (10, 20))


def test_a_borderline_failure_at_one_seed_passes_with_its_first_figure_and_a_note() -> None:
    found: list[Verdict] = []
    Judge(Louder(factor_for(1.2), only=PROBLEM), found.append, "forward")(PROBLEM)
    (missed,) = (verdict for verdict in found if verdict.recheck is not None)
    assert (
        missed.recheck is not None
        and missed.recheck.finding is RetestFinding.PASSED_ON_RETEST
        and missed.recheck.seeds == 20
    )
    assert missed.status is Status.PASS and missed.grade == "A" and missed.proves()
    assert missed.ratio is not None and 1.0 < missed.ratio < 1.4
    assert "borderline, passed on re-test at 20 fresh seeds" in missed.message
    assert Verdict.model_validate_json(missed.model_dump_json()) == missed


def test_a_kernel_a_tenth_over_its_budget_stays_rejected() -> None:
    judged: list[Verdict] = []
    judge = Judge(Louder(factor_for(1.3)), judged.append, "forward", defers=True)
    judge(PROBLEM)
    assert only_near(judged)
    reported = rechecked(judged, judge.adapter)
    assert [v.recheck.finding for v in reported if v.recheck] == [RetestFinding.CONFIRMED]
    assert rechecked(reported, judge.adapter) == reported
    with pytest.raises(Rejected, match="borderline, failed again on re-test at 10 fresh seeds"):
        Judge(judge.adapter, judged.append, "forward")(PROBLEM)


def test_the_same_borderline_failure_comes_to_the_same_end_and_is_run_again_once() -> None:
    found: list[Verdict] = []
    adapter = Louder(factor_for(1.2), only=PROBLEM)
    Judge(adapter, found.append, "forward", defers=True)(PROBLEM)
    adapter.calls = 0
    ends = rechecked([*found, *found], adapter)
    assert adapter.calls == 20
    assert ends[: len(found)] == ends[len(found) :] == rechecked(found, adapter)


def test_what_is_worse_leaves_borderline_failures_as_they_are() -> None:
    near = row(Status.FAIL, case="kda-1", statistic="rms", ratio=1.2, problem=PROBLEM.to_json())
    reported = rechecked([near, row(Status.NONFINITE, case="kda-2")], Louder(1.0))
    assert (
        reported[0].status is Status.FAIL
        and reported[0].recheck is not None
        and reported[0].recheck.reason == SETTLED
    )
    assert not only_near([near, row(Status.NONFINITE, case="kda-1")])
    assert (
        rechecked([row(Status.FAIL, statistic="zero", ratio=float("inf"))], Louder(1.0))[0].recheck
        is None
    )


def test_outputs_from_files_are_not_run_again() -> None:
    filed = Louder(1.0)
    filed.open_ended = False
    near = row(Status.FAIL, statistic="row", ratio=1.2, problem=PROBLEM.to_json())
    (reported,) = rechecked([near], filed)
    assert (
        reported.status is Status.FAIL
        and reported.recheck is not None
        and reported.recheck.reason == FILED
        and not filed.calls
    )


class Interpreted(Louder):
    """The same under an interpreter, whose calls take a hundred times as long."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"mode": "interpreted"}


# The size at which kernels of FLA were rejected without a re-test, for being interpreted.
LARGER = PROBLEM.replace(B=2, T=40, HV=1, V=64)


@pytest.mark.parametrize(
    ("ratio", "only", "finding"),
    [
        (1.2, LARGER, RetestFinding.PASSED_ON_RETEST),
        (1.3, None, RetestFinding.CONFIRMED),
    ],
)
def test_interpreted_kernels_are_run_again_at_the_sizes_that_compiled_ones_are(
    ratio: float, only: Problem | None, finding: RetestFinding
) -> None:
    found: list[Verdict] = []
    kernel = Interpreted(factor_for(ratio, LARGER), only=only)
    Judge(kernel, found.append, "forward", defers=True)(LARGER)
    (near,) = (verdict for verdict in rechecked(found, kernel) if verdict.recheck is not None)
    assert near.mode == "interpreted"
    assert near.recheck is not None and near.recheck.finding is finding


@pytest.mark.parametrize(("output", "share"), [("o", 1), ("dq", 1 / 8)])
def test_gradients_are_run_again_at_smaller_sizes(
    output: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest: list[float] = []

    def recording(
        _: object, __: object, outputs: list[str], **options: float
    ) -> dict[str, Recheck]:
        largest.append(options["largest"])
        return {name: fresh_seeds.undecided("reported") for name in outputs}

    monkeypatch.setattr(rechecking, "recheck", recording)
    near = row(Status.FAIL, statistic="rms", ratio=1.2, problem=PROBLEM.to_json(), output=output)
    rechecked([near], Louder(1.0))
    assert largest == [pytest.approx(fresh_seeds.LARGEST * share)]
