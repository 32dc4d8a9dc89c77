"""Sizes one after another, an LSE of exactly 0 and sums that cancel: each finds its fault, and
passes the same kernel without it, and one to base 2.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import adapted, in_base_two
from kdaverify.faults.attention.kernel import AttentionKernel
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.attention.list_kernel import adapted as of_lists
from kdaverify.faults.attention.sizes_in_turn import FAULTS as FOUND
from kdaverify.faults.catalogue import faulty
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.decode import MLA_DECODE
from kdaverify.operators.attention.dense import ATTENTION
from kdaverify.operators.attention.merge_problem import MergeProblem
from kdaverify.operators.attention.sizes_in_turn import PAGES, lengths
from kdaverify.operators.attention.sparse import SPARSE

FAULTS: Final = {fault.id: fault for fault in FOUND}
IN_TURN: Final = ("TURN-pages", "TURN-columns", "TURN-borders", "TURN-splits")
SHOWN: Final = {"ZERO-lse": ("zeros", "forward", {}),
                "SUMS-dq": ("sums-that-cancel", "gradients", {"of": "o"})}  # fmt: skip


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


def right_twin(name: str) -> Adapter:
    return host_of(FAULTS[name]).right(FAULTS[name])


def test_every_fault_is_here() -> None:
    assert {*FAULTS} == {*IN_TURN, *SHOWN}


@pytest.mark.rotates
@pytest.mark.parametrize("name", IN_TURN)
def test_the_rule_finds_it_and_passes_its_twin(name: str) -> None:
    found = tested(faulty(name), "sizes-in-turn")
    assert rejects(found)
    said = f"  of {FAULTS[name].operator}-"
    assert all(said in one.message for one in found if one.status.rejects)
    assert {one.status for one in tested(right_twin(name), "sizes-in-turn")} == {Status.PASS}


@pytest.mark.parametrize("name", SHOWN)
def test_a_panel_problem_finds_it_and_passes_its_twin(name: str) -> None:
    at, tested_property, detail = SHOWN[name]
    for adapter, rejected in ((faulty(name), True), (right_twin(name), False)):
        operator: Any = adapter.operator
        problems = [operator.named_problems(x, "smoke")[at] for x in FAULTS[name].dtypes]
        inside = [operator.within(adapter, problem) for problem in problems]
        wrong = [rejects(check(tested_property, adapter, one, detail)) for one in inside]
        assert wrong == [rejected] * len(inside)


@pytest.mark.parametrize("rule", ["sizes-in-turn", "sizes-in-turn-backward"])
@pytest.mark.parametrize("op", ["attention", "mla_decode"])
def test_another_convention_passes(op: str, rule: str) -> None:
    backward = RULES[rule].backward and op == "mla_decode"
    wanted = set[Status]() if backward else {Status.PASS}
    assert {one.status for one in tested(in_base_two(op), rule)} == wanted


@pytest.mark.parametrize("cache", ["rows", "fp8"])
def test_lists_pass(cache: str) -> None:
    adapter = of_lists(ListPatch(), "sparse_attention", f"caches of {cache}", cache=cache)
    assert {one.status for one in tested(adapter, "sizes-in-turn")} == {Status.PASS}


def _whole_blocks_alone(*of: Any, **how: Any) -> tuple[Tensor, Tensor]:
    """Decode of pages that are a multiple of 16."""
    if of[1].shape[1] % 16:
        raise NotImplementedError("pages of a multiple of 16 tokens alone")
    return AttentionKernel().mla_decode(*of, **how)


def test_sizes_that_a_kernel_declines_are_not_tested_and_others_are() -> None:
    adapter = adapted(_whole_blocks_alone, "mla_decode", "multiples of 16", dtypes=("fp32",))
    found = tested(adapter, "sizes-in-turn")
    assert {one.status for one in found} == {Status.PASS, Status.SKIP}
    (declined,) = (one for one in found if one.status is Status.SKIP)
    assert "pages of a multiple of 16 tokens alone" in declined.message


@pytest.mark.parametrize(
    ("operator", "declared"),
    [
        (ATTENTION, {"widths": (64,), "value_width": "same", "key_heads": "all"}),
        (ATTENTION, {"layout": "packed"}),
        (ATTENTION, {"causal_alignment": "top_left"}),
        (MLA_DECODE, {"widths": (512,), "d_k": 576, "page": 64, "key_heads": "one"}),
        (MLA_DECODE, {"page": 16, "sink": "required", "lse_includes_sink": "yes"}),
    ],
)
def test_what_an_implementation_does_not_take_is_in_no_problem(
    operator: Any, declared: Any
) -> None:
    run = getattr(AttentionKernel(), operator.name)
    adapter = adapted(run, operator.name, "of few sizes", dtypes=("fp32",), **declared)
    found = operator.sizes_in_turn(adapter, "fp32", backward=False)
    assert found
    assert all(operator.within(adapter, one) == one for one in found)
    assert all(adapter.supports(one) is None for one in found)


def test_lengths_are_those_that_blocks_and_splits_divide() -> None:
    found = {*lengths(0)}
    for size in (64, 80, 96, 112, 128, 144, 160, 192, 224, 240, 256, 320, 384, 448, 512):
        assert {*range(size, 1025, size)} - found <= {*range(144, 1025, 144)} - found
    assert {n + 1 for n in found} | {n - 1 for n in found} <= {*lengths(-1, 0, 1)}


def test_every_token_begins_a_page_somewhere() -> None:
    adapter: Any = find("eager-mla-decode")
    problems = MLA_DECODE.sizes_in_turn(adapter, "fp32", backward=False)
    assert {one.page for one in problems} >= {*PAGES}
    assert all(max(one.k_lengths) > 3 * one.page for one in problems if len(one.k_lengths) < 9)


def test_columns_of_keys_and_values_are_apart() -> None:
    for operator, name in ((ATTENTION, "eager-attention"), (SPARSE, "eager-sparse-attention")):
        adapter: Any = find(name)
        problems = operator.sizes_in_turn(adapter, "fp32", backward=False)
        apart = {one.d_k - one.d_v for one in problems}
        assert {72, 80, 96, 128, 136, 192, 256} <= apart
    assert {-72, -128, -256} <= {
        one.d_k - one.d_v
        for one in ATTENTION.sizes_in_turn(find("eager-attention"), "fp32", backward=True)
    }


def test_zeros_of_lse_are_in_one_part_or_both() -> None:
    call = MergeProblem(T=7, parts="zeros").inputs()
    a, b = call.lse_a[0], call.lse_b[0]
    assert (a[[0, 2, 3]] == 0).all() and (b[[1, 2, 4]] == 0).all() and a[1] != 0 != b[0]
    assert b[1].signbit() and b[2].signbit() and b[3] == -torch.inf == a[4]
