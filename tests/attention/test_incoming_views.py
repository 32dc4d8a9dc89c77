"""Incoming gradients that are views reach the backward of attention as they lie in memory: one that
reads them as dense tensors is rejected, where the same with their strides passes.
"""

# pyright: basic
# Functions of autograd have no types.
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.kernel import kernel
from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.rules import RULES

VIEWS = ("cotangent-expanded", "cotangent-sliced", "cotangent-swapped")


class Passed(torch.autograd.Function):
    """Its input; the gradient read with its strides, or from its memory as if it were dense."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, dense: bool) -> Tensor:
        ctx.dense = dense
        return o.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (do,) = grad_outputs
        if not ctx.dense or do.is_contiguous():
            return do, None
        memory = do.new_empty(0).set_(do.untyped_storage())[do.storage_offset() :]
        read = torch.arange(do.numel()).clamp(max=len(memory) - 1)
        return memory[read].view(do.shape), None


def attention(*, dense: bool) -> Any:
    @kernel(op="attention", lse="none", contract="math-fp32", key_heads="all")
    def port(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float) -> Tensor:
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
        return Passed.apply(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), dense)

    return port


def rejected(adapter: Any, rule: str) -> bool:
    sized = adapter.operator.sized(RULES[rule], "fp32", seed=0)
    case = CallRuleCase(adapter, adapter.operator.within(adapter, sized), 1)
    return any(outcome.status.rejects for outcome in RULES[rule].check(case))


@pytest.mark.parametrize("rule", VIEWS)
def test_a_backward_that_reads_dense_memory_is_rejected(rule: str) -> None:
    expanded = rule == "cotangent-expanded"  # the same number wherever it is read
    assert rejected(attention(dense=True), rule) is not expanded
    assert not rejected(attention(dense=False), rule)
