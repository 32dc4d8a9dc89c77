"""Many copies of a problem, tensors in several places, operands far apart: each finds its fault,
and passes the kernel without it.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import multiples, questions
from kdaverify.checks.calls.multiples import FEWER
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import in_base_two
from kdaverify.faults.attention.copies import FAULTS as COPIES
from kdaverify.faults.attention.far import FAULTS as FAR
from kdaverify.faults.attention.late_keys import FAULTS as LATE
from kdaverify.faults.attention.sources import FAULTS as SOURCES
from kdaverify.faults.catalogue import faulty
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.copies import PAGES, of_decode, of_dense, of_merges

FOUND_BY = {
    "COPY-lse": "many-copies",
    "COPY-fewer": "many-copies",
    "COPY-merge": "many-copies",
    "COPY-pages": "many-copies",
    "COPY-grid": "many-copies",
    "COPY-scan": "many-copies",
    "COPY-plan": "many-copies",
    "COPY-sequences": "many-copies-backward",
    "COPY-ends": "many-copies",
    "LATE-pages": "late-keys",
    "LATE-lists": "late-keys",
    "LATE-rows": "late-keys",
    "SOURCE-kv": "one-tensor",
    "SOURCE-heads": "one-expanded",
    "SOURCE-sink": "frozen-subsets",
    "SOURCE-scale": "two-forwards",
}
SHOWN = {"FAR-scale": "fine-logits"}
FAULTS = {fault.id: fault for fault in (*COPIES, *SOURCES, *FAR, *LATE)}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tested(adapter: Adapter, rule: str) -> list[Outcome]:
    return [
        outcome
        for one in questions(adapter, "smoke")
        if one.rule.name == rule
        for outcome in check("calls", adapter, one.problem, one.detail)
    ]


def rejects(found: list[Outcome]) -> bool:
    return any(outcome.status.rejects for outcome in found)


def test_every_fault_is_here() -> None:
    assert {*FAULTS} == {*FOUND_BY, *SHOWN}


@pytest.mark.rotates
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_rule_finds_it_and_passes_its_twin(name: str) -> None:
    found = tested(faulty(name), FOUND_BY[name])
    assert rejects(found)
    assert not any(outcome.status is Status.ERROR for outcome in found), found
    right = tested(host_of(FAULTS[name]).right(FAULTS[name]), FOUND_BY[name])
    assert Status.PASS in {outcome.status for outcome in right}
    assert {outcome.status for outcome in right} <= {Status.PASS, Status.SKIP}


@pytest.mark.parametrize("rule", ["many-copies", "many-copies-backward", "one-tensor", "late-keys"])
def test_another_convention_passes(rule: str) -> None:
    assert {one.status for one in tested(in_base_two("attention"), rule)} == {Status.PASS}


@pytest.mark.parametrize("name", SHOWN)
def test_operands_far_apart_reject_it_and_pass_its_twin(name: str) -> None:
    wrong, right = find(f"fault:{name}"), host_of(FAULTS[name]).right(FAULTS[name])
    for adapter, rejected in ((wrong, True), (right, False), (in_base_two("attention"), False)):
        panel = adapter.operator.panel(adapter, "smoke")
        problems = [one for at, one in panel if at.partition("-")[2] == SHOWN[name]]
        assert any(rejects(check("forward", adapter, one, {})) for one in problems) == rejected


def test_copies_pass_limits_that_are_products_of_sizes() -> None:
    entries, grid, sequences, heads = of_dense()
    assert 7 * entries.count * 4 > 1024
    assert 7 * grid.count * grid.base["H"] > 65535
    assert 7 * sequences.count > 1024 and 7 * (sequences.count // FEWER) > 256
    assert heads.base["H"] * heads.count * heads.base["d_v"] > 8192
    rows, columns = of_merges()
    assert rows.base["T"] * rows.count > 8192
    assert columns.base["H"] * columns.count * 8 > 8192


def test_an_interpreter_has_no_copies_about_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = [one for one in of_dense() if one.native]
    assert [one.said for one in grid] == ["heads of entries"]
    adapter = find("eager-attention")
    monkeypatch.setattr(type(adapter.operator), "copies", Mock(return_value=grid))
    assert {one.status for one in tested(adapter, "many-copies")} == {Status.PASS}
    monkeypatch.setattr(multiples, "is_interpreted", Mock(return_value=True))
    (skipped,) = tested(adapter, "many-copies")
    assert skipped.status is Status.SKIP and "interpreter" in skipped.message


def test_requests_have_pages_up_to_the_last_of_a_large_pool() -> None:
    (requests,) = of_decode()
    adapter: Any = find("eager-mla-decode")
    (one,) = [x for x in questions(adapter, "smoke") if x.rule.name == "many-copies"]
    small = one.problem.replace(**requests.base).inputs()
    whole = requests.whole(small)
    used = whole.block_table[whole.block_table < len(whole.cache)]
    assert len(whole.cache) >= PAGES and int(used.max()) >= 1 << 16
    assert len(whole.block_table) > 4096
    for n in (0, 8, 300, 4200):
        assert torch.equal(whole.gathered(n), small.gathered(n % 7))
