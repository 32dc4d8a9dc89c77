"""The page says the decision first, and holds every section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kdaverify.checks.borderline import Recheck, RetestFinding
from kdaverify.checks.status import Status
from kdaverify.diagnosis.words import DIFFERS
from kdaverify.report.evidence import REMARKABLE
from kdaverify.report.html.credential import (
    NAME,
    CredentialError,
)
from kdaverify.report.html.page import Page, render
from kdaverify.report.html.rows import rows_of
from kdaverify.report.html.rulings import ruled
from kdaverify.report.html.words import STATUSES
from kdaverify.verdicts.decision import Decision, Ruling
from kdaverify.verdicts.verdict import Verdict
from kdaverify.verdicts.waivers import Waiver
from tests.report.html.pages import (
    MATRIX,
    NOW,
    RULES,
    a_run,
    html,
    page_of,
    verdict,
    wrong,
)

KNOWN = Waiver(
    id="forward/bf16/hard-reset/*",
    impl="port",
    statistic="rms",
    cap=9.0,
    reason="known",
    owner="me",
    expires=NOW.date(),
)


def test_the_decision_comes_first_in_words() -> None:
    text = html(
        page_of(
            [
                *a_run(),
                *(
                    verdict(implementation="other", property=suite)
                    for suite in ("forward", "resume")
                ),
            ]
        )
    )
    assert "<h1>port rejected; other passes smoke (not a release approval)</h1>" in text
    assert "2 of 29 outputs are wrong: all with an error over the tolerance." in text
    assert "Gates: hard-reset (2)." in text
    assert (
        text.index("port rejected")
        < text.index('id="glance"')
        < text.index('id="failures"')
        < text.index('id="worst"')
    )


def test_the_decision_reports_which_known_faults_fit_and_else_that_none_does() -> None:
    poor = [
        wrong(case=f"kda-{i}", diagnosis=f"no known bug matches; only in rows {i}")
        for i in range(2)
    ]
    assert "Diagnosis: no known bug matches (2 cases). Suites:" in html(page_of([verdict(), *poor]))
    known = wrong(
        diagnosis="matches known bug H1: key decay applied twice (residual 0 %; no other candidate)"
    )
    assert "Diagnosis: matches known bug H1: key decay applied twice (1). Suites:" in html(
        page_of([*poor, known])
    )


def test_of_a_race_the_decision_does_not_say_that_no_known_bug_matches() -> None:
    race = wrong(diagnosis=f"{DIFFERS}: 5 of 24 calls differ from the most frequent result")
    assert f"Diagnosis: {DIFFERS} (1 case). Suites:" in html(page_of([verdict(), race]))


def test_how_near_to_its_budget_comes_what_passes_leaves_out_what_was_run_again() -> None:
    again = verdict(
        case="kda-9", ratio=1.25, recheck=Recheck(RetestFinding.PASSED_ON_RETEST, seeds=200)
    )
    text = html(page_of([verdict(ratio=0.75), verdict(property="resume", ratio=0.5), again]))
    assert (
        "What passes has errors of up to 75 % of its tolerance; 1 output above it passed on re-test"
        " at fresh seeds." in text
    )
    assert "What passes has errors of up to 75 % of its tolerance." in html(
        page_of([verdict(ratio=0.75)])
    )


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([verdict(), verdict(property="resume")], "port passes smoke (not a release approval)"),
        ([verdict()], "port undecided"),
        ([verdict(), verdict(Status.SKIP, property="resume")], "port undecided"),
        ([verdict(), verdict(property="resume", vacuous=("zeros",))], "port undecided"),
        (
            [verdict(), verdict(property="resume", dtype="bf16"), verdict(Status.UNANSWERED)],
            "port undecided",
        ),
        (
            [verdict(Status.ORACLE_UNCERTIFIED), verdict(), verdict(property="resume")],
            "port undecided",
        ),
        ([verdict(), verdict(property="resume"), wrong()], "port rejected"),
        ([], "nothing was judged"),
    ],
)
def test_what_a_record_does_not_show_is_never_accepted(verdicts: list[Verdict], said: str) -> None:
    assert f"<h1>{said}</h1>" in html(page_of(verdicts))


def test_a_decision_on_what_never_ran_is_reported() -> None:
    rows = rows_of([verdict()])
    absent = Decision("absent", Ruling.INSUFFICIENT, ("nothing passed: no case was judged",), ())
    text = html(Page(rows, tuple(ruled([absent], rows))))
    assert "the evidence is too little to accept it: nothing passed: no case was judged." in text


@pytest.mark.parametrize(
    ("also", "change", "title", "said"),
    [
        (
            [],
            {},
            "port passes smoke (not a release approval)",
            [
                "2 of 32 outputs are wrong and waived; every other",
                '<td data-label="Holds">yes</td>',
            ],
        ),
        (
            [wrong(dtype="fp16")],
            {},
            "port rejected",
            ["1 of 33 outputs is wrong: 1 with", "2 other wrong outputs are waived."],
        ),
        (
            [],
            {"cap": 2.0},
            "port rejected",
            ["2 of 32 outputs are wrong", "no: is exceeded: 7x tolerance, cap 2"],
        ),
        (
            [],
            {"impl": "other"},
            "port rejected",
            ["me) of other, which is not in the record", "no: of other, which is not in"],
        ),
    ],
)
def test_a_waiver_is_shown_with_what_it_does(
    also: list[Verdict], change: dict[str, object], title: str, said: list[str]
) -> None:
    states = [verdict(dtype=dtype, output="final_state") for dtype in ("fp32", "bf16", "fp16")]
    failing = [*(one.model_copy(update={"statistic": "rms"}) for one in a_run()), *states, *also]
    text = html(page_of(failing, waivers=(KNOWN.model_copy(update=change),)))
    assert f"<h1>{title}</h1>" in text
    for sentence in said:
        assert sentence in text


def test_a_waiver_that_forgives_nothing_rejects_what_is_right() -> None:
    right = [verdict for verdict in a_run() if not verdict.status.rejects]
    text = html(page_of(right, waivers=(KNOWN,)))
    assert (
        "No output is wrong, and yet it is rejected: waiver of rms of forward/bf16/hard-reset/*"
        " (me) matches no failure" in text
    )


def test_a_rise_over_the_whole_run_rejects_though_every_case_passes() -> None:
    risen = [verdict(T=n, peers=(1.2 + n / 1e4, 3.0)) for n in range(1, 200)]
    assert "port rejected" in html(page_of([*risen, verdict(property="resume")]))
    level = [verdict(T=n, peers=(1.0 + n / 1e4, 3.0)) for n in range(1, 200)]
    assert "port passes smoke" in html(page_of([*level, verdict(property="resume")]))


def test_passes_with_few_digits_are_reported_beside_the_decision() -> None:
    few = [verdict(T=n, digits_fewer=3.0 + n / 100, regime="slow") for n in range(1, 4)]
    text = html(page_of([*few, verdict(property="resume")]))
    assert (
        f"3 passing outputs have {REMARKABLE} than a token recurrence, as the contract allows"
        in text
    )
    assert "up to 3.0, with gates slow (3)." in text
    assert "port passes smoke" in text


def test_every_section_is_there_and_in_the_list_of_sections() -> None:
    page = page_of(a_run(), before=a_run(), waivers=(KNOWN,))
    page.__dict__["credential"] = MATRIX
    text = html(page)
    named = [
        "comparison",
        "glance",
        "failures",
        "limits",
        "worst",
        "distributions",
        "heat",
        "lengths",
        "stages",
        "standards",
        "waivers",
    ]
    for section in (*named, "environment", "credential", "reading"):
        assert f'<section id="{section}"' in text
        assert f'href="#{section}"' in text
    shown = [
        "118 of 120",
        "117 of 120",
        "0 of 1,500",
        "0 of 300",
        "state 1 of 2",
        "a lost carry: not yet",
        KNOWN.id,
        "chunk64-bf16",
        "interpreted on cpu",
    ]
    for said in (*RULES, *shown, *(status.value for status in STATUSES)):
        assert said in text


def test_the_summary_has_the_decision_the_table_and_the_replay_lines() -> None:
    text = render(
        page_of(a_run(), before=[v for v in a_run() if not v.status.rejects]), "summary.md", now=NOW
    )
    assert text.startswith("## kdaverify: port rejected\n")
    assert "| port | kda | ✓ A 1 | ✗ 2 of 10 wrong | ✓ A 1 |" in text
    assert "`kdaverify replay --impl port.py" in text


def test_without_a_kill_matrix_the_page_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kdaverify

    assert 'href="#credential"' in html(page_of(a_run()))
    monkeypatch.setattr(kdaverify, "__file__", str(tmp_path / "__init__.py"))
    assert 'href="#credential"' not in html(page_of(a_run()))


def test_a_malformed_kill_matrix_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kdaverify

    (tmp_path / NAME).write_text('{"total": -1, "killed": 0, "legal_runs": 0, "false_alarms": 0}')
    monkeypatch.setattr(kdaverify, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(
        CredentialError, match=r"kill_matrix\.json: total: .*greater than or equal to 0"
    ):
        html(page_of(a_run()))


def test_a_long_run_shows_aggregates_and_some_of_its_worst_rows() -> None:
    failing = [
        wrong(
            T=n,
            case=f"kda-{n}",
            property=f"suite-{n % 70}",
            ratio=float(n),
            implementation=f"port{n % 7}",
        )
        for n in range(1, 3000)
    ]
    text = html(page_of(failing))
    assert 100 <= len(re.findall('data-label="Status"', text)) <= 250
    assert len(text.encode()) < 2**20
    assert "0 of 7 implementations accepted" in text


def test_a_record_that_was_cut_off_is_said_on_the_page() -> None:
    assert "row 3 was cut off" in html(
        page_of(a_run(), troubles=("run.jsonl: row 3 was cut off after 7 bytes",))
    )
