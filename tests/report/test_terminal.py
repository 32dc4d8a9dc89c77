"""The terminal summary reports what is wrong, where, by how much and how to replay it, at any
width, without colour where there is none.
"""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kdaverify.checks.location import NoStage
from kdaverify.checks.status import RuleOutcome, Status
from kdaverify.report.terminal import MOST_FAILURES, show
from kdaverify.verdicts.decision import Decision, Expected, decide
from kdaverify.verdicts.verdict import Opinion, Verdict
from tests.rows import row

EXPECTED = Expected("port", ("fp32",), ("o",), ("forward",))
LARGE = '{"B":1,"HV":2,"K":64,"T":100,"V":64,"dtype":"fp32","gate":"mild"}'
SMALL = (
    '{"B":1,"HV":2,"K":8,"T":3,"V":8,"dtype":"fp32","gate":"mild","seed":123456789,"scale":0.125}'
)
REPLAY = f"kdaverify replay --impl port.py --property forward '{SMALL}'"


def wrong(**fields: object) -> Verdict:
    given = {
        "problem": SMALL,
        "replay": REPLAY,
        "ratio": 7.25,
        "grade": "F",
        "message": "o: rms error 7e-3\n  worst at token 3",
    }
    return row(Status.FAIL, **{**given, **fields})


def page(*verdicts: Verdict, width: int = 80, trouble: tuple[str, ...] = ()) -> str:
    out = StringIO()
    found: Decision = decide(verdicts, EXPECTED, trouble=trouble)
    show(Console(file=out, width=width), [found], record=Path("records/r.jsonl"))
    return out.getvalue()


SLOW = '"gate":"slow","key":"identical","beta":"two","state":"absent","value":"normal","seed":1'
COMPLETE = f'{{"B":1,"H":1,"HV":2,"K":8,"T":3,"V":8,"dtype":"fp32",{SLOW}}}'


def test_passes_with_few_digits_are_a_warning_with_the_worst_case() -> None:
    mild, worst = (
        row(Status.PASS, problem=COMPLETE, case=f"kda-{digits}", digits_fewer=digits, replay=REPLAY)
        for digits in (3.1, 4.25)
    )
    text = " ".join(page(mild, worst, width=200).split())
    assert (
        "accuracy: 2 passing outputs have three correct digits fewer (or half of what their"
        " operands hold) than a token recurrence, as the contract allows: o in fp32 (2); most often"
        " gate slow (2); key identical (2); beta two (2); most in o, " in text
    )
    assert (
        "most in o, 4.2 fewer, on kda B=1 T=3 H=1 HV=2 K=8 V=8 fp32 gate=slow key=identical"
        " beta=two" in text
    )
    assert "REJECT" not in text
    assert "accuracy" not in page(row(Status.PASS))


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_but_the_lines_to_paste_is_wider_than_the_terminal(width: int) -> None:
    trouble = ("KeyError: " + "very long " * 20,)
    lines = page(
        row(ratio=0.5, grade="A"), wrong(message="word " * 60), width=width, trouble=trouble
    ).splitlines()
    assert [line for line in lines if len(line.rstrip()) > width] == [f"  {REPLAY}"] * (
        len(REPLAY) + 2 > width
    )
    assert f"  {REPLAY}" in lines


def test_the_line_to_paste_of_a_warning_is_not_broken() -> None:
    few = row(Status.PASS, problem=COMPLETE, digits_fewer=4.0, replay=REPLAY)
    assert f"  {REPLAY}" in page(few, width=80).splitlines()


def test_headings_of_the_table_are_whole_at_80_columns() -> None:
    text = page(row(op="gate_softplus"), wrong(property="gradients", output="dq"), width=80)
    head = text.partition("└")[0]
    assert "…" not in head and "tolerance" in head


def test_the_first_failing_suite_of_a_row_is_the_first_in_the_order_of_evidence() -> None:
    text = page(wrong(property="causality"), wrong(property="forward"), width=120)
    assert [line.split("│")[-2].strip() for line in text.splitlines() if "│ kda" in line] == [
        "forward o FAIL"
    ]


def test_what_passes_with_few_digits_or_without_evidence_is_reported_below_the_failures() -> None:
    few = row(Status.PASS, problem=COMPLETE, case="kda-1", digits_fewer=4.0, replay=REPLAY)
    text = page(few, row(case="kda-2", vacuous=("zeros",)), wrong(case="kda-3"))
    order = [
        text.index(said)
        for said in (
            "port: forward o FAIL in fp32, once",
            "accuracy: ",
            "1 verdict: inconclusive, no evidence",
            "port: REJECT",
        )
    ]
    assert order == sorted(order)


def test_there_is_no_escape_sequence_without_a_terminal() -> None:
    assert "\x1b" not in page(row(), wrong())


def test_the_table_counts_and_names_the_worst_of_every_format() -> None:
    text = page(
        row(ratio=0.5, grade="A"),
        wrong(case="kda-1"),
        row(Status.SKIP, case="kda-2"),
        row(dtype="bf16", ratio=0.25, grade="B"),
    )
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in text.splitlines()
        if line.startswith("│")
    ]
    assert cells == [
        ["kda", "bf16", "1", "0", "0.25", "B", "-"],
        ["kda", "fp32", "2", "1", "7.25", "F", "forward o FAIL"],
    ]


def test_the_table_has_a_column_of_stages_where_one_is_known_and_breaks_no_output() -> None:
    long = {"output": "final_state"}
    alone, staged, none = (
        page(wrong(**long, stage=stage), width=80).partition("└")[0]
        for stage in (None, "state", NoStage.NONE_EXPOSED)
    )
    assert "stage" not in alone and "stage" in staged and "stage" not in none
    assert all("final_state" in table for table in (alone, staged, none))
    assert all(len(line) <= 80 for table in (alone, staged, none) for line in table.splitlines())


def test_of_failures_of_one_kind_the_smallest_is_shown() -> None:
    text = page(
        wrong(problem=LARGE, case="large", replay="again large"),
        wrong(case="small"),
        wrong(case="other", property="resume"),
    )
    assert "port: forward o FAIL in fp32, 2 times" in text
    assert "case small" in text
    assert "case large" not in text
    assert "  worst at token 3" in text
    assert "port: resume o FAIL in fp32, once" in text


def test_the_table_names_the_first_stage_that_a_failure_names() -> None:
    nowhere, solve = wrong(case="a", stage="none exposed"), wrong(case="b", stage="solve")

    def named(*verdicts: Verdict) -> str:
        return (
            next(line for line in page(*verdicts, width=120).splitlines() if line.startswith("│"))
            .split("│")[-2]
            .strip()
        )

    assert [named(*reported) for reported in ((nowhere, solve), (row(),))] == [
        "solve",
        "-",
    ]


def test_a_failure_has_where_it_goes_wrong_first_and_failures_of_other_stages_are_other_kinds() -> (
    None
):
    reported = "on exact inputs; R: rms error 3"
    text = page(
        wrong(case="a", stage="solve", located=reported),
        wrong(case="b", stage="wy"),
        wrong(case="c", stage="solve"),
        width=120,
    )
    assert f"  first wrong stage: solve, {reported}" in text
    assert (
        text.count("port: forward o FAIL in fp32, 2 times")
        == text.count("port: forward o FAIL in fp32, once")
        == 1
    )
    assert "  stages: all within budget; cumsum" in page(
        wrong(stage="all within budget", located="cumsum")
    )


def test_many_kinds_of_failure_are_counted_not_shown() -> None:
    kinds = [
        wrong(property=f"law{number}", stage="wy" if number == MOST_FAILURES else None)
        for number in range(MOST_FAILURES + 2)
    ]
    assert "and 2 more kinds of failure: law8 o FAIL in wy, law9 o FAIL" in page(*kinds)


def test_kinds_that_are_perhaps_of_a_race_are_listed_not_shown() -> None:
    perhaps = "perhaps a race: results differ between runs of the same inputs in forward o"
    own = {
        "forward": "results differ between runs of the same inputs: 3 of 24 calls differ",
        "state": perhaps,
        "laws": f"{perhaps}; run again, nothing fails, and 24 calls give the same result",
        "calls": f"{perhaps}; no known bug matches",
    }
    reported = page(
        *(wrong(property=name, diagnosis=said) for name, said in own.items()), width=120
    )
    listed = "and 1 more kind of failure, perhaps of the same race: laws o FAIL"
    assert listed in reported and "nothing fails" not in reported
    assert reported.count("perhaps a race") == 1  # what is known to be more stays


def test_a_kind_that_a_diagnosis_explains_is_shown_before_those_with_more_failures() -> None:
    kinds = [
        wrong(property=f"law{number}", case=f"kda-{case}")
        for number in range(MOST_FAILURES + 2)
        for case in range(2)
    ]
    text = page(
        *kinds, wrong(property="resume", diagnosis="matches known bug H1: key decay applied twice")
    )
    assert text.index("port: resume o FAIL in fp32, once") < text.index(
        "port: law0 o FAIL in fp32, 2 times"
    )
    assert (
        "diagnosis: matches known bug H1: key decay applied twice" in text
        and "and 3 more kinds of failure: law7" in text
    )


def test_of_kinds_that_match_one_known_bug_the_first_is_shown_and_the_others_listed() -> None:
    diagnosis = "matches known bug H1: twice (residual 0 %; no other candidate)"
    text = page(
        wrong(case="a", diagnosis=diagnosis),
        wrong(case="b", property="resume", diagnosis=diagnosis),
        wrong(case="c", property="packing"),
    )
    assert "port: forward o FAIL in fp32, once" in text and "port: packing o FAIL" in text
    assert "port: resume o FAIL" not in text
    assert "and 1 more kind of failure, of a bug that is named above: resume o FAIL" in " ".join(
        text.split()
    )


def test_a_plain_forward_is_shown_before_what_follows_from_it_however_often_that_fails() -> None:
    unnamed = "no known bug matches"
    text = page(
        *(wrong(property="gradients", case=f"kda-{n}", diagnosis=unnamed) for n in range(5)),
        wrong(property="forward"),
    )
    assert text.index("port: forward o FAIL in fp32, once") < text.index(
        "port: gradients o FAIL in fp32, 5 times"
    )


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (row(), "ACCEPT"),
        (wrong(ratio=math.inf), "REJECT"),
        (row(Status.SKIP), "NOT ENOUGH EVIDENCE"),
    ],
)
def test_the_page_ends_with_the_decision_and_the_record(verdict: Verdict, word: str) -> None:
    lines = page(verdict).splitlines()
    assert any(line.startswith(f"port: {word}  (") for line in lines)
    assert lines[-1] == "record: records/r.jsonl"


def test_messages_are_shown_as_they_are_even_if_they_look_like_markup() -> None:
    assert "wanted [1, 2] got [red]" in page(wrong(message="wanted [1, 2] got [red]"))


def test_words_of_a_kernel_cannot_steer_the_terminal() -> None:
    hostile = "[red]x[/red]\x1b[31m\u202e\x00"
    names = (
        "implementation op dtype output message stage located diagnosis case replay device mode"
        " benchmark"
    )
    about = {
        **dict.fromkeys(names.split(), hostile),
        "versions": {"kernel": hostile},
        "published": {hostile: Opinion(says=RuleOutcome.PASS, statistic=hostile)},
    }
    kinds = [
        wrong(**about, property=f"law{number}{hostile}") for number in range(MOST_FAILURES + 2)
    ]
    text = page(*kinds, trouble=(hostile,), width=400)
    assert "[red]x[/red]" in text
    assert not set(text) & set("\x1b\u202e\x00")
