"""Each kind of failure is reported once, and what a plain call explains by number."""

from __future__ import annotations

import subprocess
import sys

from kdaverify.checks.borderline import SETTLED
from kdaverify.checks.recheck import undecided
from kdaverify.checks.status import Status
from kdaverify.diagnosis.words import DIFFERS
from kdaverify.report.reported_kinds import (
    by_bug,
    left_open,
    minimised_or_why,
    random_failures,
    reported_kinds,
    same,
    several_bugs,
)
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row


def wrong(**fields: object) -> Verdict:
    return row(Status.FAIL, **fields)


def test_suites_that_make_the_same_call_are_one_kind_the_simplest_first() -> None:
    rows = [
        wrong(property="combined", case="b", detail={"direction": "forward"}),
        wrong(property="panel", case="c"),
        wrong(property="forward", case="a"),
        wrong(property="resume", case="a"),
    ]
    plain, resume = reported_kinds(rows)
    assert [v.property for v in plain.rows] == ["forward", "panel", "combined"]
    assert plain.elsewhere == {"panel": 1, "combined": 1} and resume.rows[0].property == "resume"


def test_outputs_that_fail_in_the_same_calls_are_named_by_the_first() -> None:
    rows = [
        wrong(case=case, output=output)
        for case, output in (("a", "o"), ("b", "o"), ("a", "final_state"))
    ]
    (found,) = reported_kinds(rows)
    assert found.rows[0].output == "o" and found.beside == {"final_state": 1}


def test_an_output_that_fails_in_calls_of_its_own_is_a_kind_of_its_own() -> None:
    rows = [wrong(case="a", output="o"), wrong(case="b", output="final_state")]
    assert [found.rows[0].output for found in reported_kinds(rows)] == ["o", "final_state"]


def test_another_status_is_another_kind() -> None:
    assert (
        len(
            reported_kinds(
                [
                    wrong(case="a"),
                    wrong(case="a", output="final_state").model_copy(
                        update={"status": Status.NONFINITE}
                    ),
                ]
            )
        )
        == 2
    )


MATCHES = "matches known bug {} (residual 0 %; no other candidate)"


def test_kinds_of_failure_that_match_different_known_bugs_are_of_several() -> None:
    rows = [
        wrong(case="a", diagnosis=MATCHES.format("A4: rows past the end, or known bug A11: NaN")),
        wrong(case="b", output="final_state", diagnosis=MATCHES.format("H2: never decayed")),
        wrong(property="gradients", output="dq", diagnosis=MATCHES.format("A4: rows past the end")),
    ]
    assert several_bugs(rows)[0] == (
        "2 bugs, by the known ones that failures match: A4 (rows past the end) matches forward o"
        " FAIL, gradients dq FAIL; H2 (never decayed) matches forward final_state FAIL"
    )
    assert [len(group) for group in by_bug(reported_kinds(rows))] == [2, 1]


def test_a_failure_that_matches_more_bugs_than_are_named_is_no_evidence_of_another() -> None:
    rows = [
        wrong(case="a", diagnosis=MATCHES.format("H2: never decayed")),
        wrong(
            case="b", output="dq", diagnosis=MATCHES.format("A: a, or known bug B: b, and 15 more")
        ),
    ]
    assert several_bugs(rows) == []


def test_one_known_bug_is_no_evidence_of_several_unless_it_leaves_failures() -> None:
    diagnosis = MATCHES.format("H2: never decayed")
    assert several_bugs([wrong(diagnosis=diagnosis), wrong(case="b", property="resume")]) == []
    left = f"{diagnosis}; not the whole cause: H2 does not explain 1 of 5; o: rows"
    assert several_bugs([wrong(diagnosis=left)]) == [
        "probably a second bug: H2 does not explain 1 of 5"
    ]


def test_what_a_plain_call_explains_is_counted_by_suite() -> None:
    rows = [
        wrong(case="a"),
        *(wrong(property="resume", case=case, same_as="forward") for case in "ab"),
    ]
    rows += [
        wrong(property="jacobian", case="a", same_as="gradients"),
        wrong(property="packing", case="a", same_as="forward"),
    ]
    assert same(rows) == [
        (
            "3 further failures are the same: a plain forward fails on those problems too (resume"
            " 2, packing 1)"
        ),
        "1 further failure is the same: plain gradients fail on those problems too (jacobian 1)",
    ]
    assert [found.rows[0].property for found in reported_kinds(rows)] == ["forward"]


def test_nothing_is_said_of_passes() -> None:
    assert reported_kinds([]) == [] and same([]) == []


def test_borderline_failures_that_were_not_run_again_are_counted_and_not_shown() -> None:
    near = wrong(property="laws", case="b", ratio=1.2, recheck=undecided(SETTLED))
    assert [found.rows[0].property for found in reported_kinds([near, wrong(case="a")])] == [
        "forward"
    ]
    assert (
        left_open([near])
        == "1 borderline failure, at most 1.5 times the tolerance, not tested at fresh seeds: the"
        " kernel is rejected without (laws 1)"
    )
    assert left_open([wrong(case="a")]) == ""


def test_a_clear_failure_stands_for_its_kind_however_small_a_borderline_one_is() -> None:
    small, clear = (
        wrong(case=case, ratio=ratio, problem=problem)
        for case, ratio, problem in (("a", 1.01, '{"T": 1}'), ("b", 40.0, '{"T": 64}'))
    )
    assert not small.is_clear() and clear.is_clear()
    assert [found.shown.case for found in reported_kinds([small, clear])] == ["b"]
    assert wrong(case="c", ratio=None).is_clear() and wrong(ratio=float("nan")).is_clear()


def test_a_case_that_was_not_localised_counts_with_those_that_were() -> None:
    rows = [
        wrong(case="a"),
        wrong(case="b", stage="solve"),
        wrong(case="c", stage="solve"),
        wrong(case="d", stage="wy"),
    ]
    assert [(found.stage, len(found.rows)) for found in reported_kinds(rows)] == [
        ("solve", 3),
        ("wy", 1),
    ]


def test_the_command_line_starts_without_torch() -> None:
    """It costs the first of three processes three seconds."""
    found = "import sys, kdaverify.cli.app, kdaverify.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", found], check=False).returncode == 0


def test_results_that_differ_between_runs_are_said_once_above_all_failures() -> None:
    race = f"{DIFFERS}: 8 of 24 calls differ from the most frequent result"
    rows = [
        wrong(case="a", property="panel", diagnosis=race),
        wrong(case="b", property="resume", diagnosis=race),
        wrong(case="c", property="packing", output="final_state"),
    ]
    assert random_failures(rows) == [f"{DIFFERS}: in forward o, resume o"]
    assert random_failures(rows[2:]) == []
    depends = wrong(case="d", contrast=f"{DIFFERS} (o): differ at T = 1, agree at T = 64")
    assert random_failures([*rows, depends]) == []


FITS_H1, FITS_V4 = (f"matches known bug {bug} (residual 0 %)" for bug in ("H1: one", "V4: two"))


def test_failures_of_one_kind_that_match_different_known_bugs_are_apart() -> None:
    rows = [
        wrong(case="a", diagnosis=FITS_H1),
        wrong(case="b"),
        wrong(case="c", diagnosis=FITS_V4),
        wrong(case="c", output="final_state", diagnosis=FITS_V4),
    ]
    found = [(kind.rows[0].output, [*kind.bugs], kind.times) for kind in reported_kinds(rows)]
    assert sorted(found) == [("o", ["H1"], 2), ("o", ["V4"], 2)]
    assert len(reported_kinds([row for row in rows if "V4" not in row.diagnosis])) == 1


def test_a_case_that_was_not_made_smaller_has_a_reason() -> None:
    smaller = wrong(case="a", minimised="smallest case that fails in the same way, T=2:\nreplay")
    beside = wrong(case="b", output="final_state")
    law = wrong(property="laws", case="c", detail={"law": "scale"})
    rows = [smaller, beside, law]
    said = {
        kind.name.partition(" FAIL")[0]: minimised_or_why(kind, rows)
        for kind in reported_kinds(rows)
    }
    assert said["forward o"] == smaller.minimised
    assert said["forward final_state"] == "not minimised: forward o, of the same call, is"
    assert said["laws o"] == "not minimised: no time was left for it (--diagnosis gives more)"
    (alone,) = reported_kinds([law])
    assert minimised_or_why(alone, [law]).startswith("not minimised: failures were not diagnosed")
    crash = row(Status.CRASH, case="d")
    assert "ended the kernel's process" in minimised_or_why(alone, [law, crash])
    form = row(Status.CONVENTION, case="e")
    (kind,) = reported_kinds([form])
    assert "does not depend on the size" in minimised_or_why(kind, [form])
