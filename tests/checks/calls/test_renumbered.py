"""Segment ids in any order, and padding anywhere, change nothing; kernels that take ids for more
than names are found.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.conventions import segment_ids
from kdaverify.checks.calls import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import RIGHT
from kdaverify.faults.planted.by_ids import (
    BROKEN_BY_IDS,
    OF_FEW_BITS,
    RIGHT_BY_IDS,
    summed_by_longest,
)
from kdaverify.problems import Problem
from oracles.inputs import InputError


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def problem_of(adapter: Adapter) -> Problem:
    return next(
        one.problem for one in questions(adapter, "acceptance") if one.rule.name == "renumbered"
    )


def result_of(adapter: Adapter, rule: str) -> list[Outcome]:
    return check("calls", adapter, problem_of(adapter), {"rule": rule})


BROKEN = {**BROKEN_BY_IDS, "renumbered": BROKEN_BY_IDS["renumbered"] | OF_FEW_BITS}


@pytest.mark.parametrize(
    ("rule", "fault"), [(rule, fault) for rule, faults in BROKEN.items() for fault in faults]
)
def test_a_kernel_that_takes_ids_for_more_than_names_is_found_by_one_rule_alone(
    rule: str, fault: str
) -> None:
    adapter = BROKEN[rule][fault]()
    plain = check("forward", adapter, problem_of(adapter), {})
    assert not any(outcome.status.rejects for outcome in plain)
    found = {
        name
        for name in BROKEN_BY_IDS
        if any(outcome.status.rejects for outcome in result_of(adapter, name))
    }
    assert rule in found and (rule == "renumbered" or found == {rule})


@pytest.mark.parametrize("rule", BROKEN_BY_IDS)
def test_a_kernel_that_compares_neighbouring_ids_passes(rule: str) -> None:
    assert {outcome.status for outcome in result_of(RIGHT_BY_IDS, rule)} == {Status.PASS}


def test_a_kernel_whose_sums_go_by_the_longest_sequence_passes() -> None:
    adapter = summed_by_longest()
    found = result_of(adapter, "padding-by-ids")
    assert {outcome.status for outcome in found} == {Status.PASS}
    # other bits, once the longest sequence is padding
    assert not all("same bits" in outcome.message for outcome in found)


@pytest.mark.parametrize("rule", BROKEN_BY_IDS)
def test_a_kernel_of_offsets_is_skipped(rule: str) -> None:
    assert {outcome.status for outcome in result_of(RIGHT, rule)} == {Status.SKIP}


def test_ids_of_a_call_reach_the_tokens_of_its_sequences() -> None:
    x = problem_of(RIGHT_BY_IDS).replace(lengths=(2, 0, 1), T=4).inputs()
    ids = segment_ids(replace(x, sequence_ids=torch.tensor([7, 3, 9])))
    assert ids is not None and ids.tolist() == [[7, 7, 9, -1]]


def test_ids_that_repeat_are_refused() -> None:
    x = problem_of(RIGHT_BY_IDS).inputs()
    with pytest.raises(InputError, match="sequence_ids: wanted 4 different integers"):
        replace(x, sequence_ids=torch.tensor([1, 2, 2, 3]))
