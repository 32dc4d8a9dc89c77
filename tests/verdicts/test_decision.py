"""The decision table: what counts as evidence, what outweighs what,
and the exit codes people script against.
"""

from __future__ import annotations

import pytest

from kdaverify.checks.status import REFUSED, Status
from kdaverify.verdicts.decision import Decision, Expected, Ruling, decide, heaviest
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row

EXPECTED = Expected(
    "port", dtypes=("fp32", "bf16"), outputs=("o", "final_state"), properties=("forward", "resume")
)
FULL = [
    row(property=name, dtype=dtype, output=output)
    for name in EXPECTED.properties
    for dtype in EXPECTED.dtypes
    for output in EXPECTED.outputs
]  # fmt: skip
UNCERTIFIED = row(Status.ORACLE_UNCERTIFIED, case="kda-9")


def ruled(
    verdicts: list[Verdict], *trouble: str, expected: Expected = EXPECTED
) -> tuple[Ruling, int]:
    ruling = decide(verdicts, expected, trouble=trouble).ruling
    return ruling, ruling.exit_code


def test_complete_evidence_is_accepted() -> None:
    assert ruled(FULL) == (Ruling.ACCEPT, 0)


@pytest.mark.parametrize(
    "status",
    [status for status in Status if status.rejects and status is not Status.ORACLE_UNCERTIFIED],
)
def test_one_rejecting_verdict_rejects_whatever_else_passed(status: Status) -> None:
    assert ruled([*FULL, row(status)]) == (Ruling.REJECT, 1)


def test_a_harness_exception_outweighs_a_rejection() -> None:
    assert ruled([*FULL, row(Status.FAIL)], "test_forward: KeyError") == (Ruling.ERROR, 2)


def test_all_skipped_is_no_evidence() -> None:
    assert ruled(
        [row(Status.SKIP, property=v.property, dtype=v.dtype, message="no device") for v in FULL]
    ) == (Ruling.INSUFFICIENT, 3)


def test_why_nothing_passed_says_whether_all_was_skipped() -> None:
    skipped = [
        row(Status.SKIP, message="no device"),
        row(Status.SKIP, case="kda-1", message="no packs"),
    ]
    assert (
        decide(skipped, EXPECTED).reasons[-1]
        == "nothing passed: every case was skipped, no device (and 1 more reason)"
    )
    assert (
        decide([*skipped, row(Status.FAIL)], EXPECTED).reasons[-1]
        == "nothing passed: no device (and 1 more reason)"
    )


def test_what_the_kernel_refuses_is_listed_as_not_tested() -> None:
    refused = row(Status.SKIP, case="kda-1", message=f"{REFUSED}tensors that are views (said so)")
    found = decide([*FULL, refused, row(Status.SKIP, case="kda-2", message="no packs")], EXPECTED)
    assert found.ruling is Ruling.ACCEPT
    assert found.reasons == (f"not tested: {REFUSED}tensors that are views (said so)",)


def test_nothing_at_all_is_no_evidence() -> None:
    assert ruled([]) == (Ruling.INSUFFICIENT, 3)
    assert heaviest([]) is Ruling.INSUFFICIENT


@pytest.mark.parametrize(
    "lacking", [{"dtype": "bf16"}, {"output": "final_state"}, {"property": "resume"}]
)
def test_a_format_an_output_or_a_property_without_a_pass_is_a_gap(lacking: dict[str, str]) -> None:
    ((name, value),) = lacking.items()
    skipped = [
        v.model_copy(update={"status": Status.SKIP}) if getattr(v, name) == value else v
        for v in FULL
    ]
    assert ruled(skipped) == (Ruling.INSUFFICIENT, 3)
    assert value in decide(skipped, EXPECTED).reasons[0]


def test_a_rejection_outweighs_a_gap() -> None:
    assert ruled([*FULL[:1], row(Status.FAIL)]) == (Ruling.REJECT, 1)


def test_a_case_without_a_certified_reference_neither_accepts_nor_rejects() -> None:
    assert ruled([*FULL, UNCERTIFIED]) == (Ruling.INSUFFICIENT, 3)


def test_what_an_implementation_declares_not_to_have_is_listed_as_not_applicable() -> None:
    expected = Expected(
        "port",
        EXPECTED.dtypes,
        EXPECTED.outputs,
        (*EXPECTED.properties, "packing"),
        {"packing": "packing='none'"},
    )
    decision = decide(FULL, expected)
    assert decision.ruling is Ruling.ACCEPT
    assert decision.reasons == ("not tested: packing (packing='none')",)


def test_reasons_come_heaviest_and_most_frequent_first() -> None:
    several = [row(Status.FAIL, case=f"kda-{i}") for i in range(2)] + [
        row(Status.SHAPE, case=f"kda-{i}") for i in range(3)
    ]
    verdicts = [*FULL, row(Status.NONFINITE, property="resume"), *several, UNCERTIFIED]
    reasons = decide(verdicts, EXPECTED, trouble=["the harness broke"]).reasons
    assert [reason.split(":")[0] for reason in reasons] == [
        "the harness broke",
        "forward fp32 SHAPE",
        "forward fp32 FAIL",
        "resume fp32 NONFINITE",
        "1 case without a certified reference value",
    ]


def test_outputs_of_one_problem_are_one_case_and_skipped_cases_are_counted_apart() -> None:
    rows = [
        row(output="o"),
        row(output="final_state"),
        row(case="kda-1"),
        row(detail={"cut": 3}),
        row(Status.SKIP, case="kda-2"),
    ]
    decision = decide(rows, EXPECTED)
    assert (decision.cases, decision.skipped) == (3, 1)


def test_a_session_is_ruled_by_its_heaviest_decision() -> None:
    decisions = [Decision("port", ruling, (), ()) for ruling in Ruling]
    assert heaviest(decisions) is Ruling.ERROR
    assert heaviest(d for d in decisions if d.ruling is not Ruling.ERROR) is Ruling.REJECT
    assert (
        heaviest(d for d in decisions if d.ruling in (Ruling.ACCEPT, Ruling.INSUFFICIENT))
        is Ruling.INSUFFICIENT
    )


def test_a_pass_that_zeros_would_get_is_no_evidence() -> None:
    hollow = [
        verdict.model_copy(update={"vacuous": ("zeros",)}) if verdict.dtype == "bf16" else verdict
        for verdict in FULL
    ]
    decision = decide(hollow, EXPECTED)
    assert (decision.ruling, decision.vacuous) == (Ruling.INSUFFICIENT, 4)
    assert set(decision.reasons) == {"no pass for o in bf16", "no pass for final_state in bf16"}
    all_hollow = [verdict.model_copy(update={"vacuous": ("zeros",)}) for verdict in FULL]
    assert decide(all_hollow, EXPECTED).reasons == (
        "nothing passed: zeros, negated or shuffled outputs would pass too (inconclusive)",
    )


def test_the_worst_grade_of_every_format_is_reported() -> None:
    graded = [
        row(dtype="fp32", grade="A"),
        row(Status.FAIL, dtype="bf16", grade="B"),
        row(Status.SHAPE, dtype="fp16"),
        row(Status.SKIP),
    ]
    assert decide(graded, EXPECTED).grades == {"bf16": "B", "fp16": "F", "fp32": "A"}


RAISED = (
    "the kernel raised AttributeError: module 'torch' has no attribute 'scan' (__init__.py:9 in"
    " __getattr__, called at port.py:{} in port)"
)
KEYWORD = row(
    property="calls",
    output="call",
    case="kda-7",
    message="call: inital_state=None is refused: TypeError",
)


def errors(*messages: str) -> list[Verdict]:
    return [
        row(Status.ERROR, case=f"kda-{i}", message=message) for i, message in enumerate(messages)
    ]


def test_the_same_error_in_every_case_is_no_rejection() -> None:
    decision = decide(
        [*errors(RAISED.format(3), RAISED.format(9)), KEYWORD, row(Status.SKIP, case="kda-8")],
        EXPECTED,
    )
    assert decision.ruling is Ruling.INSUFFICIENT
    (reason,) = decision.reasons
    assert reason.startswith(
        "cannot run here: the kernel raised AttributeError: module 'torch' has no attribute 'scan'"
    )
    assert reason.endswith("so in each of 2 cases tried")


def test_several_missing_names_are_no_rejection() -> None:
    assert ruled(
        errors(
            RAISED.format(3), "the kernel raised ImportError: cannot import name 'a' (b.py:1 in f)"
        )
    ) == (
        Ruling.INSUFFICIENT,
        3,
    )


@pytest.mark.parametrize(
    "others",
    [
        [row(case="kda-9")],
        [row(Status.FAIL, case="kda-9")],
        errors("", "the kernel raised ValueError: T = 65 (port.py:3 in port)")[1:],
        [row(property="calls", output="o", case="kda-9")],
    ],
)
def test_an_error_beside_another_verdict_or_another_error_is_a_rejection(
    others: list[Verdict],
) -> None:
    assert ruled(
        [*errors("the kernel raised ValueError: T = 64 (port.py:3 in port)"), *others]
    ) == (Ruling.REJECT, 1)
