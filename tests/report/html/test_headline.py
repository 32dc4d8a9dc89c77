"""What the head of a page says a decision is about, and what it may not be taken for."""

from __future__ import annotations

import json

import pytest

from kdaverify.checks.status import Status
from kdaverify.report.html.failures import INCONCLUSIVE, LIMITS, UNCONFIRMED
from kdaverify.report.html.page import render
from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.seal import Covered, Expected
from tests.report.html.pages import (
    MATRIX,
    NOW,
    a_run,
    html,
    page_of,
    verdict,
    wrong,
)

RIGHT = [verdict(), verdict(property="resume")]


CODE = CodeIdentity(
    digest="ab" * 32,
    files={"port.py": "cd" * 32},
    folder=".",
    version="port 1.2",
    commit="v1-dirty",
    uncommitted=("port.py",),
)


def test_smoke_cannot_be_read_as_a_release_approval_and_acceptance_can() -> None:
    smoke, accepted = (
        html(page_of(RIGHT, about={"profile": profile})) for profile in ("smoke", "acceptance")
    )
    assert (
        '<article class="decision provisional">' in smoke
        and '<article class="decision accept">' not in smoke
    )
    assert "This is not a release approval. A release is decided by the profile acceptance" in smoke
    assert (
        "smoke: a quick check while a kernel is written" in smoke and "port accepted" not in smoke
    )
    assert "<h1>port accepted</h1>" in accepted and '<article class="decision accept">' in accepted
    assert "release approval" not in accepted.partition('id="reading"')[0]


def test_smoke_in_the_summary_of_a_pull_request_is_no_approval_either() -> None:
    assert "port passes smoke \\(not a release approval\\)" in render(
        page_of(RIGHT), "summary.md", now=NOW
    )


def test_the_headline_names_profile_seed_contract_rules_coverage_and_code() -> None:
    expected = Expected(
        "port",
        ("fp32",),
        ("o",),
        ("forward", "resume"),
        {"packing": "it packs nothing"},
        ("long runs",),
        (Covered(2, 9, 10),),
    )
    text = html(
        page_of(RIGHT, about={"seed": 17, "judged": {"port": CODE}, "expected": (expected,)})
    )
    box = text[text.index('<dl class="facts">') : text.index("</dl>")]
    for said in (
        "smoke: a quick check",
        "<dd>17</dd>",
        "chunk64-bf16",
        "session: what the run itself tests",
        "9 of 10 pairs",
        str(CODE),
    ):
        assert said in box, said
    assert (
        "sha256 abababababab, version port 1.2, git v1-dirty (modified), not committed: port.py"
        in box
    )
    untested = "<b>Not tested:</b> packing (it packs nothing); long runs."
    assert untested in text and "<details" not in text[: text.index(untested)]
    assert "<dt>Code</dt><dd>not recorded</dd>" in html(page_of(RIGHT))
    assert "<b>Not tested:</b> the kernel declares no exclusion." in html(page_of(RIGHT))
    assert "<b>Not tested:</b> not recorded." in html(page_of(RIGHT, about={"profile": ""}))


def test_what_the_failing_cases_have_in_common_is_said_under_the_decision() -> None:
    about = {"B": 1, "H": 1, "HV": 1, "K": 8, "V": 8, "dtype": "fp32", "seed": 1}
    regimes = {
        "beta": "uniform",
        "gate": "mild",
        "key": "random",
        "state": "absent",
        "value": "normal",
    }
    problems = {T: json.dumps({**about, **regimes, "T": T}) for T in range(1, 129)}
    make = {True: wrong, False: verdict}
    text = html(
        page_of(
            [make[T > 64](T=T, problem=problem, case=f"kda-{T}") for T, problem in problems.items()]
        )
    )
    said = "Fails only where T &gt; 64: 64 of 64 cases, 0 of 64 elsewhere (in o)"
    assert said in text[: text.index('id="glance"')]
    assert "in common" not in html(page_of(RIGHT))


def test_conventions_that_fit_no_better_are_no_call_that_the_kernel_does_not_take() -> None:
    said = "conventions: no single other choice explains it"
    undecided = verdict(Status.SKIP, property="conventions", output="call", message=said)
    text = html(page_of([*RIGHT, undecided]))
    limits = text[text.index('<section id="limits"') :].partition("</section>")[0]
    assert UNCONFIRMED in limits and LIMITS[Status.SKIP.value] not in limits


def test_failures_and_limits_of_the_evidence_are_separate_lists() -> None:
    unproven = verdict(
        Status.ORACLE_UNCERTIFIED, case="kda-9", message="no oracle is accurate enough"
    )
    text = html(page_of([*a_run(), unproven, verdict(case="kda-7", vacuous=("zeros",))]))
    failures, limits = (
        text[text.index(f'<section id="{name}"') :].partition("</section>")[0]
        for name in ("failures", "limits")
    )
    assert "2 failures of 1 kind" in failures and "certified" not in failures
    assert UNCONFIRMED not in limits
    for why in (*LIMITS.values(), INCONCLUSIVE):
        assert (why in limits) is (why != LIMITS["UNANSWERED"]), why
    box = text[: text.index('id="glance"')]
    assert "1 failing group, the largest first" in box and "of the evidence</summary>" in box
    assert (
        box.index("forward bf16 FAIL: 2 verdicts")
        < box.index("of the evidence</summary>")
        < box.index("1 case without a certified")
    )


@pytest.mark.parametrize(
    ("profile", "said"),
    [("smoke", "117 of 120"), ("acceptance", "118 of 120"), ("nightly", "was not measured under")],
)
def test_the_credential_is_that_of_the_profile_that_ran(profile: str, said: str) -> None:
    page = page_of(RIGHT, about={"profile": profile})
    page.__dict__["credential"] = MATRIX
    text = html(page)
    assert said in text[text.index('<section id="credential"') :].partition('<p class="muted">')[0]
