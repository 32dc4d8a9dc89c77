"""Rules of calls that a port breaks are said above its failures, where most others hold; a kernel
that is wrong in plain calls, and a right one, get no such line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.diagnosis.failing_rules import MOST, failing_rules
from kdaverify.diagnosis.words import DIFFERS
from kdaverify.verdicts.verdict import Verdict

QUICK: Final = (
    "view-guarded", "view-shifted", "view-misaligned", "view-sliced", "view-swapped",
    "edited-values", "recorded-forward", "inference-mode",
)  # fmt: skip
"""Rules that take milliseconds, each in the one format that smoke gives it."""


def rows(broken: Collection[str], *, same_as: str = "") -> list[Verdict]:
    return [
        Verdict(
            implementation="port",
            property="calls",
            dtype="bf16",
            regime="mild",
            case="of a test",
            output="o",
            status=Status.FAIL if rule in broken else Status.PASS,
            detail={"rule": rule},
            same_as=same_as if rule in broken else "",
        )
        for rule in RULES
    ]


def judged(adapter: Adapter) -> Iterator[Verdict]:
    for test in questions(adapter, "smoke"):
        if test.rule.name in QUICK:
            for found in check("calls", adapter, test.problem, test.detail):
                yield Verdict(
                    implementation=adapter.name,
                    property="calls",
                    dtype=test.problem.dtype,
                    regime=test.problem.regime,
                    case=test.problem.id,
                    output=found.output,
                    status=found.status,
                    detail=test.detail,
                )


def test_a_kernel_that_demands_an_alignment_breaks_the_rules_of_addresses_alone() -> None:
    (said,) = failing_rules(judged(find("fault:S30")))
    assert said.startswith("2 of 8 rules of calls are broken: view-misaligned (all inputs dense, ")
    assert "; view-shifted (" in said


def test_a_right_kernel_gets_no_line() -> None:
    assert failing_rules(judged(find("eager"))) == []


def test_what_is_wrong_in_plain_calls_is_no_news_of_rules() -> None:
    few = sorted(RULES)[:2]
    (said,) = failing_rules(rows(few))
    assert all(RULES[rule].about in said for rule in few)
    assert failing_rules(rows(few, same_as="forward")) == []
    assert failing_rules(rows(sorted(RULES)[: MOST + 1])) == []
    assert failing_rules(rows(RULES)) == []
    plain = [
        row.model_copy(update={"property": "forward", "detail": {}})
        for row in rows(few)
        if row.status.rejects
    ]
    assert failing_rules([*rows(few), *plain]) == [said]
    assert failing_rules([*rows(few), *plain, *plain]) == []


def test_rules_that_one_output_breaks_are_said_beside_another_that_is_wrong_everywhere() -> None:
    few = sorted(RULES)[:2]
    state = [
        row.model_copy(update={"output": "final_state", "status": Status.FAIL}) for row in rows(few)
    ]
    (said,) = failing_rules([*rows(few), *state])
    assert said.startswith(f"2 of {len(RULES)} rules of calls are broken in o: ")
    assert failing_rules(state) == []


def test_kinds_of_rules_are_said_where_too_many_are_broken_to_list() -> None:
    steps = [rule for rule in RULES if RULES[rule].decode]
    (said,) = failing_rules(rows(steps))
    others = len(RULES) - len(steps)
    assert said.startswith(
        f"{len(steps)} of {len(steps)} rules of the decode entry point are broken,"
        f" 0 of {others} others: {steps[0]}, "
    )
    views = [rule for rule in RULES if rule.startswith("view-")]
    (said,) = failing_rules(rows(views))
    assert " rules about addresses and strides are broken, " in said
    assert failing_rules(rows(steps, same_as="forward")) == []
    assert failing_rules(rows([*RULES][::3])) == []


def test_failures_of_laws_do_not_hide_a_rule() -> None:
    laws = [
        row.model_copy(update={"property": "resume", "detail": {"cut": 1}, "status": Status.FAIL})
        for row in rows(sorted(RULES)[:5])
    ]
    (said,) = failing_rules([*rows(["crowd"]), *laws])
    assert said.startswith(f"1 of {len(RULES)} rules of calls is broken: crowd (")


def test_a_race_gets_no_list_of_rules() -> None:
    few = rows(sorted(RULES)[:2])
    race = f"{DIFFERS}: 3 of 24 calls differ from the most frequent result"
    assert failing_rules([few[0].model_copy(update={"diagnosis": race}), *few[1:]]) == []


def test_rules_that_raise_are_said_beside_plain_calls_with_wrong_numbers() -> None:
    plain = [
        row.model_copy(update={"property": "forward", "detail": {}, "status": Status.FAIL})
        for row in rows([])[:9]
    ]
    raising = [
        row.model_copy(update={"status": Status.ERROR}) if row.status.rejects else row
        for row in rows(["view-misaligned", "view-shifted"])
    ]
    (said,) = failing_rules([*raising, *plain])
    assert said.startswith(f"2 of {len(RULES)} rules of calls are broken by ERROR: view-misaligned")
    nan = [row.model_copy(update={"status": Status.NONFINITE}) for row in plain]
    assert failing_rules([*raising, *plain, *nan]) == []
