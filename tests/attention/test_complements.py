"""P of a sink made as 1 - y is within tolerance; one without little sinks is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.reference import Loss, attention_gradient_reference
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from oracles.attention.backward import AttentionBackward, AttentionBackwardStages, Given, dsink
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from tests.attention.segments import enclosed, segment, textbook

LEVELS = (-30.0, -15.0, -12.0, -10.0, -6.0, 0.0, 8.0, 80.0)
"""Of the sinks of all heads, relative to LSE."""


def _given(dtype: torch.dtype, counted: bool) -> tuple[Segment, Tensor, Tensor]:
    given = segment(H=8, h_kv=2, s_q=5, s_k=40, dtype=dtype, empty=False)
    sink = textbook(given)[1].mean(1) + torch.tensor(LEVELS)
    given = replace(given, sink=sink.bfloat16().float(), lse_includes_sink=counted)
    rng = torch.Generator().manual_seed(5)
    do = torch.randn(8, 5, given.v.shape[-1], generator=rng).to(dtype)
    return given, do, torch.randn(8, 5, generator=rng)


def _gradients(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return dict(zip(("dq", "dk", "dv", "dsink"), parts[0], strict=True))


@cache
def _reference(dtype: str, *, counted: bool) -> Reference:
    given, do, dlse = _given(FORMATS[dtype].dtype, counted)
    made = AttentionPipeline()(given, torch.float64)
    exact = _gradients([AttentionBackward()(given, made, (do, dlse), torch.float64)])
    return attention_gradient_reference(
        [given],
        [Loss(do, dlse)],
        {name: enclosed(x) for name, x in exact.items()},
        _gradients,
        attention_contract(f"online64-{dtype}", FORMATS[dtype]),
        method="float64",
    )


def _worst(stages: AttentionBackwardStages, dtype: str, *, counted: bool) -> float:
    """The worst ratio of dsink of a kernel in fp32."""
    given, do, dlse = _given(FORMATS[dtype].dtype, counted)
    made = AttentionPipeline()(given, torch.float32)
    found = AttentionBackward(stages=stages)(given, made, (do, dlse), torch.float32)
    reference = _reference(dtype, counted=counted)
    allowed, exact = reference.budgets["dsink"], reference.exact("dsink")
    error = exact.error(_gradients([found])["dsink"].double())
    return max(allowed.ratios(allowed.measure(error, exact)).values())


def _complement(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    """P = 1 - y, y = 1 / (1 + exp(a - LSE)), as automatic differentiation of a sigmoid has it."""
    alone = given.lse if given.alone is None else given.alone
    if given.alone is None:
        alone = given.lse + torch.log1p(-torch.exp(a - given.lse))
    P = 1 - 1 / (1 + torch.exp(a - alone))
    return P * (given.dlse * (given.alone is None) - delta)


def _without_little(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    found = dsink(run, a, delta, given)
    return torch.where(torch.exp(a - given.lse) < 1e-4, torch.zeros_like(found), found)


def _little_negated(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    found = dsink(run, a, delta, given)
    return torch.where(torch.exp(a - given.lse) < 1e-5, -found, found)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_weight_of_a_sink_may_be_a_complement_of_the_factor(
    dtype: str, *, counted: bool
) -> None:
    """A right port in JAX had 0 for weights of 1e-12, at 4e5 times its tolerance."""
    assert _worst(AttentionBackwardStages(dsink=_complement), dtype, counted=counted) <= 1


@pytest.mark.parametrize("wrong", [_without_little, _little_negated])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_little_sinks_have_gradients(wrong: object, dtype: str) -> None:
    stages = AttentionBackwardStages(dsink=wrong)  # pyright: ignore[reportArgumentType]
    assert _worst(stages, dtype, counted=False) > 5
