"""A second bug is looked for where the first one, once it is named, explains no failure."""

from __future__ import annotations

import pytest

from benchmarks.ported_faults import port
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.remainder import Remainder, remainder, unlike
from kdaverify.diagnosis.reproduced import row_of
from kdaverify.diagnosis.session import diagnosed, explained
from kdaverify.diagnosis.words import FURTHER, further, known_bugs
from kdaverify.problems import Problem
from kdaverify.report.reported_kinds import several_bugs
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from tests.faults.triggers import PLAIN

SMALL = {**PLAIN, "B": 1, "H": 1, "HV": 1, "K": 4, "V": 4, "dtype": "bf16", "gate": "mild"}


def case(**changes: object) -> PropertyCase:
    return PropertyCase("forward", Problem.model_validate({**SMALL, **changes}))


FIRST = case(T=2)
EMPTY = case(T=12, lengths=(5, 0, 7), state="random")
OTHERS = [case(T=4), case(T=70), EMPTY, case(T=9, state="random"), case(T=12, lengths=(5, 7))]


@pytest.mark.parametrize(
    ("bugs", "left"),
    [
        (("H1",), ""),
        (
            ("H1", "V4"),  # V4: the final state of an empty sequence is never written
            (
                "H1 does not explain 1 of 5 failures that were compared, each with a pack with an"
                f" empty sequence, such as {EMPTY.problem.describe()}"
            ),
        ),
    ],
)
def test_what_a_known_bug_does_not_explain_is_reported_with_what_it_has_in_common(
    bugs: tuple[str, ...], left: str
) -> None:
    kernel = port(*bugs)
    found = diagnose(kernel, FIRST, seconds=60)
    assert [match.suspect.fault.id for match in found.named] == ["H1"]
    said = remainder(kernel, found, OTHERS, seconds=60).said
    assert said == (f"{FURTHER}{left}" if left else "")
    assert further(f"{found}; {said}") == left


def test_a_kernel_that_no_known_bug_matches_leaves_nothing() -> None:
    kernel = port()
    found = diagnose(kernel, FIRST, seconds=60)
    assert remainder(kernel, found, OTHERS, seconds=60) == Remainder()


def test_cases_are_compared_in_an_order_in_which_each_is_unlike_those_before() -> None:
    ordered = unlike(FIRST, [case(T=3), case(T=4), EMPTY, case(T=4)])
    assert ordered[0] == EMPTY and len(ordered) == 3


def test_the_smallest_failure_in_which_no_output_of_the_first_fails_is_diagnosed_too() -> None:
    rows = list[Verdict]()
    for problem in (EMPTY.problem, case(T=70, state="random").problem):
        with pytest.raises(Rejected):
            # V4 is wrong in final_state alone, O2 in o alone
            Judge(port("O2", "V4"), rows.append, "forward")(problem)
    found = diagnosed(rows, port("O2", "V4"), seconds=60)
    assert ["V4:" in said or "O2:" in said for said in found.values()] == [True, True]


def test_a_second_bug_in_the_same_outputs_is_diagnosed_too() -> None:
    kernel, rows = port("H1", "V4"), list[Verdict]()
    for problem in (FIRST.problem, EMPTY.problem):
        with pytest.raises(Rejected):
            Judge(kernel, rows.append, "forward")(problem)
    found = explained(rows, kernel, seconds=60)
    said = [row.model_copy(update=found.get(row_of(row), {})) for row in rows]
    (line,) = several_bugs([row for row in said if row.status.rejects])
    assert line.startswith("2 bugs, by the known ones that failures match: H1 (")
    assert "; V4 (" in line and line.endswith(" matches forward final_state FAIL")
    bugs = [(row.output, [*known_bugs(row.diagnosis)]) for row in said if row.diagnosis]
    assert ("o", ["H1"]) in bugs and ("final_state", ["V4"]) in bugs
    assert ("o", ["V4"]) not in bugs


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("bug", "changes"),
    [
        ("H7", {"T": 1, "state": "absent"}),  # the kernel has no gradient of an absent state
        ("P6", {"T": 1, "state": "random"}),  # strictly triangular tensors have no elements
    ],
)
def test_gradients_of_a_token_without_some_tensors_are_diagnosed(
    bug: str, changes: dict[str, object]
) -> None:
    question = PropertyCase("gradients", case(**changes).problem, {"of": "both"})
    found = diagnose(port(bug), question, seconds=60)
    assert bug in {match.suspect.fault.id for match in found.named}
    assert found.explained
