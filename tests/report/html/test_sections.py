"""Every section counts what the record holds."""

from __future__ import annotations

import math

import polars as pl
import pytest

from kdaverify.checks.borderline import Recheck, RetestFinding
from kdaverify.checks.status import Status
from kdaverify.report.html.comparison import comparison
from kdaverify.report.html.distributions import distributions
from kdaverify.report.html.environment import environments
from kdaverify.report.html.failures import ALIKE, kinds, worst
from kdaverify.report.html.glance import glance
from kdaverify.report.html.heat import heats
from kdaverify.report.html.lengths import lengths
from kdaverify.report.html.rows import Rows, rows_of
from kdaverify.report.html.stages import stages
from kdaverify.report.html.standards import standards
from kdaverify.report.published import tallies
from kdaverify.report.reported_kinds import reported_kinds, same
from tests.report.html.pages import a_run, verdict, wrong

ROWS = rows_of(a_run())


def test_a_cell_has_the_worst_grade_and_ratio_and_counts_cases_once() -> None:
    rows = rows_of(
        [
            verdict(output=output, ratio=ratio)
            for output, ratio in (("o", 0.25), ("final_state", 0.75))
        ]
    )
    [line] = glance(rows).lines
    assert line.cells[0] is not None
    assert (
        line.cells[0].cases,
        line.cells[0].judged,
        line.cells[0].failed,
        line.cells[0].worst,
        line.cells[0].grade,
    ) == (
        1,
        2,
        0,
        0.75,
        "A",
    )
    [line] = glance(ROWS).lines
    assert [cell and (cell.judged, cell.failed, cell.grade) for cell in line.cells] == [
        (11, 0, "A"),
        (10, 2, "F"),
        (8, 0, "A"),
    ]


def test_failures_of_one_kind_are_one_and_the_shortest_case_stands_for_them() -> None:
    rows = rows_of(
        [
            wrong(T=T, dtype=dtype, output=output)
            for T in (64, 3, 9)
            for dtype in ("bf16", "fp32")
            for output in ("o", "dq")
        ]
    )
    [kind] = kinds(rows).shown
    assert (kind.times, kind.outputs, kind.dtypes, kind.blamed, kind.row["T"]) == (
        12,
        ("o", "dq"),
        ("bf16", "fp32"),
        "solve",
        3,
    )
    assert kinds(rows_of([wrong(stage="not judged"), wrong(stage=None)])).shown[0].times == 2


def test_a_kind_opens_on_a_case_that_was_diagnosed() -> None:
    rows = rows_of([wrong(T=T) for T in (3, 9, 64)])
    said = pl.when(pl.col("T") > 3).then(pl.lit("like H1")).otherwise(pl.lit(""))
    [kind] = kinds(Rows(rows.full.with_columns(diagnosis=said))).shown
    assert (kind.times, kind.row["T"], kind.row["diagnosis"]) == (3, 9, "like H1")


def test_the_page_has_the_kinds_of_the_terminal_and_what_is_collapsed_under_them() -> None:
    failures = [
        *(wrong(property=suite, T=T) for suite in ("resume", "panel", "forward") for T in (3, 9)),
        *(wrong(property="laws", T=T, same_as="forward") for T in (3, 9)),
        verdict(Status.NONFINITE, ratio=None),
    ]
    found, wanted = kinds(rows_of(failures)), reported_kinds(failures)
    assert [(kind.times, kind.row["property"]) for kind in found.shown] == [
        (kind.times, kind.shown.property) for kind in wanted
    ]
    assert found.failures == len(failures) and found.same == tuple(same(failures))


def test_the_worst_come_first_few_alike_then_the_nearest_passes() -> None:
    rows = rows_of(
        [
            *(wrong(T=n, ratio=float(n)) for n in range(2, 9)),
            wrong(ratio=math.inf),
            verdict(ratio=0.1),
            verdict(ratio=0.9),
        ]
    )
    shown = worst(rows)
    assert [row["ratio"] for row in shown] == [math.inf, 8.0, 7.0, 0.9, 0.1]
    assert len([row for row in shown if row["status"] == "FAIL"]) == ALIKE


def test_what_became_of_a_borderline_failure_is_a_sentence() -> None:
    [row] = worst(
        rows_of(
            [
                verdict(
                    recheck=Recheck(
                        RetestFinding.PASSED_ON_RETEST,
                        seeds=200,
                        over=1,
                        median=0.9,
                        limit=math.inf,
                    )
                )
            ]
        )
    )
    assert row["recheck"].startswith(
        "borderline, passed on re-test at 200 fresh seeds: 1 over tolerance"
    )


def test_every_compared_output_is_in_one_bar() -> None:
    right, off = (0.0, 1e-9, 0.5, 0.9999, 1.0), (1.5, math.inf)
    [panel] = distributions(
        rows_of(
            [*(verdict(ratio=ratio) for ratio in right), *(wrong(ratio=ratio) for ratio in off)]
        )
    )
    assert (panel.compared, panel.over, sum(bar.count for bar in panel.bars)) == (7, 2, 7)
    assert sum(bar.count for bar in panel.bars if bar.over) == 2
    assert (panel.bars[0].count, panel.bars[-1].count) == (2, 1)


def test_the_map_marks_what_failed_whatever_its_ratio_and_keeps_regimes_apart() -> None:
    [found] = heats(
        rows_of(
            [
                verdict(key="identical", regime="zero", ratio=0.3),
                wrong(key="random", regime="mild", ratio=None),
            ]
        )
    )
    assert (found.gates, found.keys) == (("zero", "mild"), ("random", "identical"))
    [[none, calm], [bad, nothing]] = found.spots
    assert (none, nothing) == (None, None)
    assert calm is not None and bad is not None
    assert (calm.shade, bad.shade, bad.failed, bad.worst) == (2, 5, 1, None)


def test_lengths_are_taken_by_octave() -> None:
    [run] = lengths(
        rows_of([verdict(T=T, ratio=T / 128) for T in (1, 2, 3, 4, 64, 127)] + [wrong(T=64)])
    )
    assert [(point.T, point.judged, point.failed, point.worst) for point in run.points] == [
        (1, 1, 0, 1 / 128), (2, 2, 0, 3 / 128), (4, 1, 0, 1 / 32), (64, 3, 1, 127 / 128),
    ]  # fmt: skip
    assert run.points[-1].x == 1.0


def test_stages_count_their_tensors_and_the_failures_that_blame_them() -> None:
    found = stages(ROWS)
    assert [(stage.name, stage.tensors, stage.judged, stage.blamed) for stage in found] == [
        ("solve", ("R", "R (I + Akk) = I"), 2, 2),
        ("state", ("h",), 1, 0),
    ]
    fused = stages(rows_of([*a_run(), wrong(stage="intra (R)", output="dq")]))
    assert (fused[-1].name, fused[-1].direction, fused[-1].blamed) == ("intra (R)", "fused", 1)


def test_others_standards_are_counted_as_the_last_page_counts_them() -> None:
    [found] = standards(ROWS)
    assert {tally.rule: tally for tally in found.tallies} == {
        tally.rule: tally for tally in tallies(a_run())
    }


def test_the_environment_names_every_version_and_where_it_ran() -> None:
    old, new = (verdict(versions={"torch": version}) for version in ("2.8", "2.9"))
    rows = rows_of([old, new, verdict(Status.SKIP, mode="native", device="npu")])
    [found] = environments(rows)
    assert (found.ran, found.versions["torch"]) == (("interpreted on cpu",), "2.13, 2.8, 2.9")


@pytest.mark.parametrize("names", [("port", "port"), ("old", "new")])
def test_two_runs_are_compared_output_by_output(names: tuple[str, str]) -> None:
    before = rows_of(
        [verdict(implementation=names[0], T=T, ratio=0.25) for T in range(1, 9)]
        + [wrong(implementation=names[0], T=99)]
    )
    now = [verdict(implementation=names[1], T=T, ratio=0.5) for T in range(1, 8)] + [
        wrong(implementation=names[1], T=8)
    ]
    found = comparison(
        rows_of(
            [*now, verdict(implementation=names[1], T=99), verdict(implementation=names[1], T=1000)]
        ),
        before,
        "old.jsonl",
    )
    assert (
        found.shared,
        found.newly_rejected,
        found.mended,
        found.only_now,
        found.only_before,
    ) == (9, 1, 1, 1, 0)
    [change] = found.changes
    assert change.times == pytest.approx(2.0)
    assert [row["T"] for row in found.broken] == [8]


def test_a_run_beside_itself_has_not_changed() -> None:
    found = comparison(ROWS, ROWS, "itself")
    assert (
        found.newly_rejected,
        found.mended,
        found.only_now,
        found.only_before,
        found.changes,
    ) == (0, 0, 0, 0, ())


def test_runs_of_several_implementations_are_compared_by_name() -> None:
    both = rows_of([*a_run("a"), *a_run("b")])
    assert (
        comparison(both, rows_of(a_run("a")), "a alone").only_now
        == comparison(both, both, "both").shared // 2
    )
