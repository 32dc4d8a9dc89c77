"""Eager attention, which stores q k^T in fp16 before it scales it. It declares how large a product
may be: larger ones are left out of every problem, and listed as not tested.
"""

from __future__ import annotations

import math
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.kernel import kernel
from kdaverify.checks.properties import check
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.regimes import REGIMES, largest_product

LARGEST: Final = 65504.0
CONTRACT: Final = "math-fp16[product:fp16;S:fp16]"


def eager(**options: Any) -> Any:
    """Eager attention as transformers has it: the scores in fp16, scaled when they are stored."""

    @kernel(op="attention", lse="none", contract=CONTRACT, dtypes=("fp16",), **options)
    def port(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> Tensor:
        group = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(group, 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()).half() * softmax_scale
        weights = scores.float().softmax(-1).half().float()
        return torch.einsum("bhqk,bkhd->bqhd", weights, v.float()).half()

    return port


def rejected(adapter: Any, logits: str) -> bool:
    panel = dict(adapter.operator.panel(adapter, "smoke"))
    problem = panel.get(f"fp16-{logits}-logits")
    if problem is None:
        return False
    found = check("forward", adapter, problem, {})
    return any(outcome.status.rejects for outcome in found)


def test_a_product_that_overflows_is_rejected_where_no_largest_is_declared() -> None:
    assert rejected(eager(), "lowest")
    assert not rejected(eager(), "high")


def test_declared_it_is_left_out_and_listed() -> None:
    port = eager(largest_product=LARGEST)
    assert not rejected(port, "lowest") and not rejected(port, "high")
    lowest = AttentionProblem(dtype="fp16", logits="lowest", d_k=16, s_k=9)
    assert port.supports(lowest) == "it does not take logits='lowest'"
    said = ("products of q and k above 65,504 (outside the declared domain)",)
    assert port.operator.outside(port) == said
    assert eager().operator.outside(eager()) == ()


def test_one_that_ordinary_numbers_exceed_is_refused() -> None:
    with pytest.raises(AdapterError, match="largest_product: wanted 256 or more, got 20"):
        eager(largest_product=20)


@pytest.mark.parametrize("logits", REGIMES)
def test_no_product_of_a_problem_is_larger_than_said(logits: Any) -> None:
    problem = AttentionProblem(s_q=5, s_k=131, H=4, h_kv=2, d_k=24, d_v=8, logits=logits)
    call = problem.inputs()
    found = torch.einsum(
        "bqhd,bkhd->bhqk", call.q.double(), call.k.double().repeat_interleave(2, 2)
    )
    largest = largest_product(logits, 131, 24, problem.softmax_scale)
    assert float(found.abs().max()) <= largest < math.inf


@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16])
def test_scaled_scores_of_repeated_heads_may_be_differentiated(kept: torch.dtype) -> None:
    """dS is stored, scaled and stored again: below 2^-14 the second takes bits of the first."""

    def rounded(dS: Tensor) -> Tensor:
        return dS.to(kept).to(dS)

    @kernel(op="attention", lse="none", contract=CONTRACT, dtypes=("fp16",))
    def port(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> Tensor:
        q, k, v = (x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in (q, k, v))
        scores = q @ k.mT * softmax_scale
        scores.register_hook(rounded)
        return (scores.float().softmax(-1).half() @ v).transpose(1, 2)

    problem = dict(port.operator.panel(port, "smoke"))["fp16-falling-logits"].replace(seed=9)
    found = check("gradients", port, problem, {"of": "o"})
    assert any(outcome.status.rejects for outcome in found) == (kept is torch.bfloat16)
