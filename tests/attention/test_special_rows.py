"""Rows of exactly 0, LSE far from 0, and losses whose incoming gradients differ by powers of two:
each finds its fault, and passes the same kernel without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import rejected
from kdaverify.checks.properties import check
from kdaverify.faults.attention.special_rows import FAULTS as FOUND
from kdaverify.faults.catalogue import FAULTS, faulty
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.merge import MERGE_STATE
from kdaverify.operators.attention.merge_problem import MergeProblem
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.sparse_problem import SparseProblem
from kdaverify.operators.cotangents import HEADS, LATER, uneven
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.short_conv.problem import ShortConvProblem
from tests.operators import plain_ports

FORWARD: Final = {
    "ROWS-keys": ("special-logits",),
    "ROWS-values": ("special-logits",),
    "ROWS-cache": ("special-logits",),
    "ROWS-lists": ("special-logits", "quantised-special"),
    "ROWS-merge": ("zero-rows",),
    "MERGE-products": ("high", "low", "lowest"),
    "CONV-zeros": ("zero-rows-values",),
}
BACKWARD: Final = {
    "LOSS-fp16": "uneven-loss",
    "LOSS-lists": "uneven-loss",
    "CONV-fp16": "uneven-loss",
    "NORM-gates": "zero-rows-values",
    "NORM-table": "deep-of-a-model",
    "NORM-fp16": "uneven-loss",
}
CASES: Final = (
    *((name, at, "panel", {}) for name, found in FORWARD.items() for at in found),
    *((name, at, "gradients", {"of": "both"}) for name, at in BACKWARD.items()),
)
FORMATS: Final = ("fp32", "bf16", "fp16")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def failing(adapter: Adapter, at: str, prop: str, detail: dict[str, Any]) -> list[bool]:
    """Whether a problem of the panel rejects it, by format."""
    operator: Any = adapter.operator
    problems = [operator.named_problems(dtype, "smoke")[at] for dtype in adapter.dtypes]
    inside = [operator.within(adapter, problem) for problem in problems]
    return [rejected(check(prop, adapter, one, detail)) for one in inside]


def test_every_fault_is_here() -> None:
    assert {fault.id for fault in FOUND} <= {*FORWARD, *BACKWARD}


@pytest.mark.parametrize(("name", "at", "prop", "detail"), CASES)
def test_a_problem_finds_a_fault_and_passes_its_twin(
    name: str, at: str, prop: str, detail: dict[str, Any]
) -> None:
    assert all(failing(faulty(name), at, prop, detail))
    fault = FAULTS[name]
    assert not any(failing(host_of(fault).right(fault), at, prop, detail))


def relative_to_lse(
    o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """As FlashMLA's combine has it: weights have the rounding of LSE."""
    lse = torch.logaddexp(lse_a, lse_b)
    known = lse.masked_fill(torch.isneginf(lse), 0.0)
    a, b = ((x - known).exp().mT[..., None] for x in (lse_a, lse_b))
    return (a * o_a.float() + b * o_b.float()).to(o_a.dtype), lse


def in_base_two(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """As FlashInfer's merge has it."""
    top = torch.maximum(lse_a, lse_b)
    known = top.masked_fill(torch.isneginf(top), 0.0)
    a, b = (torch.exp2(x - known) for x in (lse_a, lse_b))
    total = a + b
    shares = [(x / total.masked_fill(total == 0, 1.0)).mT[..., None] for x in (a, b)]
    o = shares[0] * o_a.float() + shares[1] * o_b.float()
    return o.to(o_a.dtype), known + total.log2()


def converted(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The difference to base 2, not each LSE: as compilers make exp."""
    top = torch.maximum(lse_a, lse_b).nan_to_num(neginf=0.0)
    a, b = (torch.exp2((x - top) * math.log2(math.e)) for x in (lse_a, lse_b))
    total = a + b
    scaled = 1 / total.masked_fill(total == 0, 1.0)
    o = (a * scaled).mT[..., None] * o_a.float() + (b * scaled).mT[..., None] * o_b.float()
    return o.to(o_a.dtype), top + total.log2() * math.log(2)


def merge(function: Callable[..., Any], **options: Any) -> Any:
    return kv.kernel(op="merge_state", dtypes=FORMATS, name=function.__name__, **options)(function)


@pytest.mark.parametrize("parts", ["normal", "far", "apart", "high", "low", "lowest", "empty"])
@pytest.mark.parametrize(
    "adapter",
    [
        merge(plain_ports.merge_state),
        merge(in_base_two, lse="2"),
        merge(converted),
        merge(relative_to_lse, contract="online-fp32[weights:lse]"),
    ],
    ids=lambda adapter: adapter.name,
)
def test_merges_conform_at_every_lse_by_the_weights_that_they_declare(
    adapter: Adapter, parts: str
) -> None:
    assert not any(failing(adapter, parts, "panel", {}))
    for dtype in FORMATS:
        problem = MERGE_STATE.probe(dtype).replace(parts=parts)
        for law in MERGE_STATE.laws():
            assert not rejected(check("laws", adapter, problem, {"law": law}))


def test_weights_relative_to_lse_have_to_be_declared() -> None:
    assert failing(merge(relative_to_lse), "high", "panel", {}) == [True, False, False]


def test_rows_are_exactly_zero_beside_ordinary_ones() -> None:
    call = AttentionProblem(s_q=5, s_k=131, H=6, h_kv=3, logits="special", value="special").inputs()
    keys, values, queries = ((x[0] == 0).all(-1) for x in (call.k, call.v, call.q))
    assert keys[-2:].all() and keys[:, 2].all() and values[:, 0].all()
    for zero in (keys[:, :2], values[:, 1:], queries):
        assert zero.any(0).all() and not zero.all(0).any()
    assert keys[5::7].all() and (keys.any(1) & ~keys[:, :2].all(1)).any()
    assert call.k[0].signbit()[keys].any() and not call.k[0].signbit()[keys].all()
    ordinary = call.k[0, :, 0][~keys[:, 0]]
    assert len(ordinary.unique(dim=0)) < len(ordinary)
    assert (call.q[0, 2] == call.q[0, 2, :1]).all(-1).sum() > 1


def test_lse_of_zero_rows_are_finite() -> None:
    call = MergeProblem(T=7, H=3, parts="zero-rows").inputs()
    zero = [(o == 0).all(-1) for o in (call.o_a, call.o_b)]
    assert (zero[0] & ~zero[1]).any() and (zero[1] & ~zero[0]).any() and (zero[0] & zero[1]).any()
    assert not (zero[0] | zero[1]).all()
    assert torch.isfinite(call.lse_a).all() and torch.isfinite(call.lse_b).all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_incoming_gradients_differ_by_head_and_by_token(dtype: str) -> None:
    do = uneven(("B", "s_q", "H", "d_v"), (2, 5, 4, 3), dtype)[0, :, :, 0]
    assert (do[0] / do[0, 0]).log2().tolist()[::3] == [0, -HEADS[dtype]]
    assert (do[1] / do[0]).log2().unique().tolist() == [-LATER[dtype]]
    assert (do[3] == 0).all()
    dlse = uneven(("B", "H", "s_q"), (2, 4, 5), dtype)[0]
    assert torch.equal(dlse[:, :3], do[:3].mT) and (dlse[:, 3] > 0).all()


def test_a_loss_is_in_the_id_where_it_is_uneven() -> None:
    problems = (
        AttentionProblem(),
        SparseProblem(),
        ShortConvProblem(T=4, D=3),
        GatedNormProblem(T=4, V=3),
    )
    for problem in problems:
        assert problem.replace(loss="uneven").stem == f"{problem.stem}-uneven_loss"
        assert "loss" not in problem.to_json()
