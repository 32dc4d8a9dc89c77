"""Sizes in every triple, and layouts in the widths of compiled kernels: each reveals kernels that
are wrong where several sizes meet, and passes the same kernel without the fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify import kernel as decorated
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import CallRuleTest, questions
from kdaverify.checks.outcome import rejected
from kdaverify.checks.properties import check
from kdaverify.faults.attention.adapter import adapted, in_base_two
from kdaverify.faults.attention.kernel import AttentionKernel
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.attention.list_kernel import adapted as of_lists
from kdaverify.operators import bounded
from kdaverify.operators.attention.decode import MLA_DECODE
from kdaverify.operators.attention.dense import ATTENTION
from kdaverify.operators.attention.problem import MlaDecodeProblem

Answer = tuple[Tensor, Tensor]
Call = dict[str, Any]
SPLIT: Final = 128


def _lse_of_requests(run: Callable[..., Answer], q: Tensor, k: Tensor, v: Tensor, how: Call) -> Any:
    """LSE of packs of one query each is read in the order of another axis."""
    o, lse = run(q, k, v, **how)
    if how["cu_seqlens_q"] is None:
        return o, lse
    each, keys = how["cu_seqlens_q"].diff(), how["cu_seqlens_k"].diff()
    if bool((each == 1).all()) and k.shape[1] > 1 and int(keys.max()) > SPLIT:
        lse = lse.mT.reshape(lse.shape)
    return o, lse


def _key_behind(run: Callable[..., Answer], q: Tensor, k: Tensor, v: Tensor, how: Call) -> Any:
    """Few queries of 64 or 128 columns read a key past the last one."""
    few = how["cu_seqlens_q"] is None and q.shape[1] <= 8 and not how["causal"]
    if few and q.shape[3] == v.shape[3] in (64, 128) and k.shape[1] % 32:
        k, v = (torch.cat((x, x[:, :1]), 1) for x in (k, v))
    return run(q, k, v, **how)


def _dense_rows(run: Callable[..., Answer], q: Tensor, k: Tensor, v: Tensor, how: Call) -> Any:
    """Rows of 256 columns are read as if they were dense."""
    if q.shape[-1] == 256 and not q.is_contiguous():
        q = q.flip(-1)
    return run(q, k, v, **how)


def _whole_blocks(run: Callable[..., Answer], *of: Any, **how: Any) -> Answer:
    """Whole blocks of 256 keys are not stored."""
    (o, lse), lengths = run(*of, **how), of[3]
    return o.masked_fill(((lengths > 0) & (lengths % 256 == 0))[:, None, None, None], 0.0), lse


def _first_key_head(run: Callable[..., Answer], *of: Any, **how: Any) -> Answer:
    """Splits of later KV heads have the LSE of the first."""
    (o, lse), h_kv = run(*of, **how), of[1].shape[2]
    if h_kv > 1 and int(of[3].max()) > SPLIT:
        lse = lse.clone()
        lse[:, lse.shape[1] // h_kv :] = lse[:, :1]
    return o, lse


def _two_groups(run: Callable[..., Answer], *of: Any, **how: Any) -> Answer:
    """A program of 16 heads reads the KV head of the next group."""
    (o, lse), h_kv = run(*of, **how), of[1].shape[2]
    group = o.shape[2] // h_kv
    if h_kv > 1 and group > 16 and group % 16:
        o = o.clone()
        o[:, :, 16:group] = o[:, :, group : group + 1]
    return o, lse


def _of_rows(wrong: Callable[..., Any]) -> Callable[..., Any]:
    """A fault of dense attention, of q, k and v."""

    def called(run: Callable[..., Answer], *of: Tensor, **how: Any) -> Any:
        return wrong(run, *of, how)

    return called


WRONG: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "one query each": ("attention", _of_rows(_lse_of_requests)),
    "a key behind": ("attention", _of_rows(_key_behind)),
    "whole blocks": ("mla_decode", _whole_blocks),
    "first key head": ("mla_decode", _first_key_head),
    "two groups": ("mla_decode", _two_groups),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def kernel(op: str, wrong: Callable[..., Any] | None = None, **more: Any) -> Adapter:
    run = getattr(AttentionKernel(), op)

    @wraps(run)
    def called(*of: Any, **how: Any) -> Any:
        return run(*of, **how) if wrong is None else wrong(run, *of, **how)

    return adapted(called, op, f"combined sizes of {op}", dtypes=("fp32",), **more)


def combined(adapter: Adapter, rule: str = "combined-sizes") -> Iterator[CallRuleTest]:
    return (one for one in questions(adapter, "smoke") if one.rule.name == rule)


def rejects(adapter: Adapter, one: CallRuleTest) -> bool:
    found = check("calls", adapter, one.problem, one.detail)
    return any(outcome.status.rejects for outcome in found)


@pytest.mark.parametrize("name", WRONG)
def test_a_combination_of_sizes_rejects_it_and_passes_its_twin(name: str) -> None:
    op, wrong = WRONG[name]
    adapter = kernel(op, wrong)
    shown = next((one for one in combined(adapter) if rejects(adapter, one)), None)
    assert shown is not None
    assert not rejects(kernel(op), shown)


@pytest.fixture
def every_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are too wide to decide by count too."""
    monkeypatch.setattr(bounded, "SHARP", math.inf)


@pytest.mark.parametrize("op", ["attention", "mla_decode"])
def test_conforming_kernels_are_within_the_bounds(op: str, every_bound: None) -> None:
    for adapter in (kernel(op), in_base_two(op)):
        for one in [*combined(adapter)][::12]:
            found = check("calls", adapter, one.problem, one.detail)
            assert all("proven error bound" in outcome.message for outcome in found), found


def test_gradients_of_a_conforming_kernel_are_within_the_bounds(every_bound: None) -> None:
    adapter = kernel("attention")
    for one in [*combined(adapter, "combined-sizes-backward")][::8]:
        found = check("calls", adapter, one.problem, one.detail)
        assert all("proven error bound" in outcome.message for outcome in found), found


def test_conforming_kernels_pass_where_a_bound_says_nothing() -> None:
    """Of logits near -1,000 it may be larger than an eighth of the values."""
    for rule, share in (("combined-sizes", 12), ("combined-sizes-backward", 8)):
        adapter = kernel("attention")
        for one in [*combined(adapter, rule)][::share]:
            if one.problem.logits == "low":
                found = check("calls", adapter, one.problem, one.detail)
                assert not rejected(found), found


def test_views_of_256_columns_reject_a_kernel_that_reads_them_as_dense() -> None:
    adapter, right = kernel("attention", _of_rows(_dense_rows)), kernel("attention")
    views = {one.name: one for one in questions(adapter, "smoke") if one.rule.name == "view-sliced"}
    assert {*views} == {f"fp32-view-sliced-0{of}" for of in ("", "-pack", *COLUMNS)}
    rejected = {name: rejects(adapter, one) for name, one in views.items()}
    assert [name for name, wrong in rejected.items() if wrong] == ["fp32-view-sliced-0-256-columns"]
    assert not rejects(right, views["fp32-view-sliced-0-256-columns"])


COLUMNS: Final = ("-64-columns", "-128-columns", "-256-columns")


@pytest.mark.parametrize("op", [ATTENTION, MLA_DECODE])
def test_every_triple_of_some_sizes_is_in_a_problem(op: Any) -> None:
    found = op.combined_sizes(kernel(op.name), "smoke", backward=False)
    for group, h_kv in ((8, 3), (20, 2), (20, 3)):
        assert any(group * h_kv == x.H and x.h_kv == h_kv and _longest(x) > 512 for x in found)
    for length in (64, 128, 256, 512, 1024):
        for end in (-1, 0, 1):
            assert any(_longest(x) == length + end and x.causal for x in found)


def _longest(problem: Any) -> int:
    return max(s_k for _, s_k in problem.pairs)


@pytest.mark.parametrize(
    ("op", "declared"),
    [
        (ATTENTION, {"widths": (64,), "value_width": "same", "key_heads": "all"}),
        (ATTENTION, {"causal_alignment": "top_left"}),
        (MLA_DECODE, {"widths": (512,), "d_k": 576, "page": 64, "key_heads": "one"}),
        (MLA_DECODE, {"sink": "required", "lse_includes_sink": "yes"}),
    ],
)
def test_what_an_implementation_does_not_take_is_in_no_problem(op: Any, declared: Any) -> None:
    adapter = kernel(op.name, **declared)
    found = op.combined_sizes(adapter, "smoke", backward=False)
    assert len(found) > 9
    assert all(op.within(adapter, problem) == problem for problem in found)
    assert all(adapter.supports(problem) is None for problem in found)


def test_caches_that_have_few_widths_are_tested_in_those() -> None:
    adapter = of_lists(ListPatch(), "sparse_attention", "caches of FP8", cache="fp8")
    widths = {
        one.problem.d_v for one in questions(adapter, "smoke") if one.form.endswith("columns")
    }
    assert widths == {128, 256}


def test_a_constant_is_within_no_bound() -> None:
    """Of logits near -1,000 whose products are rounded to bf16 the proven bound is larger than all
    values: a port that returned 16 and 238 passed.
    """

    @decorated(op="mla_decode", contract="online64-bf16[product:bf16;PV:bf16]", dtypes=("bf16",))
    def constants(
        q: Tensor,
        cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        *,
        d_v: int,
        softmax_scale: float,
        causal: bool,
    ) -> Answer:
        del cache, block_table, cache_seqlens, softmax_scale, causal
        return q.new_full((*q.shape[:3], d_v), 16.0), torch.full(q.shape[:3], 238.0).mT.contiguous()

    problem = MlaDecodeProblem(
        dtype="bf16", seed=29, H=1, h_kv=1, d_k=24, d_v=16, k_lengths=(129, 129), page=64,
        logits="low", causal=False,
    )  # fmt: skip
    found = check("calls", constants, problem, {"rule": "combined-sizes"})
    assert [one.status.rejects for one in found] == [True, True]
