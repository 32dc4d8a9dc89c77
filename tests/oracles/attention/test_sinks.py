"""Attention with a sink in float64, balls and decimals; with one key more; its gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.regimes import REGIMES
from oracles.attention.balls import by_balls, by_decimals
from oracles.attention.segment import Segment
from oracles.attention.sink import attend_with_sink, softmax_of
from tests.oracles.attention.test_attention_forms import agree, drawn

LEVELS = (-math.inf, -1000.0, -30.0, 0.5, 12.0, 90.0, 1000.0)
SIZES = {"H": 7, "s_q": 3, "s_k": 5, "d_k": 6, "d_v": 3, "causal": True}


def sunk(segment: Segment, levels: tuple[float, ...] = LEVELS, *, counted: bool) -> Segment:
    sink = torch.tensor(levels[: len(segment.q)], dtype=torch.float32)
    return replace(segment, sink=sink, lse_includes_sink=counted)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("logits", [*REGIMES])
def test_three_forms_agree_within_their_radii(logits: str, *, counted: bool) -> None:
    for s_k in (5, 2):
        problem = AttentionProblem.model_validate(
            {"dtype": "bf16", "logits": logits, **SIZES, "s_k": s_k}
        )
        (segment,) = problem.inputs().segments()
        segment = sunk(segment, counted=counted)
        exact = attend_with_sink(segment)
        for other in (by_balls(segment), by_decimals(segment)):
            assert agree(exact.o, other.o)
            assert agree(exact.lse, other.lse)
        finite = torch.isfinite(exact.lse.high)
        level = exact.lse.high[finite].abs().clamp(min=1.0)
        # scores are known to their size, also where a sink counts instead of them
        scores = segment.scale * float((segment.q.double() @ segment.k.double().mT).abs().max())
        size = max(1.0, scores / 1000)
        assert float((exact.lse.radius[finite] / level).max()) < 1e-12 * size
        assert float(exact.o.radius.max()) < 1e-11 * size


@pytest.mark.parametrize("counted", [False, True])
def test_a_sink_is_a_factor_of_o(*, counted: bool) -> None:
    segment = sunk(drawn(3, 7, 1.0), (-2.0, 0.5, 3.0, 40.0), counted=counted)
    plain = softmax_of(replace(segment, sink=None))
    a = segment.sink.double()[:, None]  # pyright: ignore[reportOptionalMemberAccess]
    found = attend_with_sink(segment)
    factor = torch.sigmoid(plain.lse[0] - a)[..., None]
    torch.testing.assert_close(found.o.high, plain.o[0] * factor, rtol=1e-12, atol=1e-15)
    wanted = torch.logaddexp(plain.lse[0], a) if counted else plain.lse[0]
    torch.testing.assert_close(found.lse.high, wanted, rtol=1e-13, atol=1e-13)


def test_a_sink_of_minus_infinity_is_none() -> None:
    segment = sunk(drawn(5, 3, 1.0), (-math.inf,) * 4, counted=True)
    found, plain = attend_with_sink(segment), softmax_of(replace(segment, sink=None))
    assert torch.equal(found.o.high, plain.o[0])
    assert torch.equal(found.lse.high, plain.lse[0])


def test_rows_without_keys_have_the_sink_alone() -> None:
    segment = sunk(drawn(5, 3, 1.0), (-math.inf, -2.0, 0.5, 30.0), counted=True)
    found = attend_with_sink(segment)
    assert bool((found.o.high[:, :2] == 0).all())
    assert segment.sink is not None
    wanted = segment.sink.double()[:, None].expand(-1, 2)
    assert torch.equal(found.lse.high[:, :2], wanted)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("sizes", [(3, 7), (5, 3), (1, 1)])
def test_gradients_are_those_of_autograd_within_the_radius(
    sizes: tuple[int, int], *, counted: bool
) -> None:
    segment = sunk(drawn(*sizes, 2.0), (-8.0, 0.5, 3.0, 20.0), counted=counted)
    leaves = [
        x.double().clone().requires_grad_()
        for x in (segment.q, segment.k, segment.v, segment.sink)
        if x is not None
    ]
    d_o = torch.randn(4, sizes[0], 5).double()
    d_lse = torch.randn(4, sizes[0]).double()
    o, lse = by_one_more_column(segment, leaves)
    full = torch.isfinite(lse)
    wanted = torch.autograd.grad(
        [o, lse.masked_fill(~full, 0.0)], leaves, [d_o, d_lse], materialize_grads=True
    )
    found = [*softmax_of(segment).backward(d_o, d_lse)]
    assert len(found) == 4
    for (value, error), other in zip(found, wanted, strict=True):
        assert bool(((value - other).abs() <= 2 * error.bound + 1e-300).all())


def by_one_more_column(segment: Segment, leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    q, k, v, sink = leaves[0], *(segment.of_heads(x) for x in leaves[1:3]), leaves[3]
    scores = (q @ k.mT * segment.scale).masked_fill(~segment.visible, -torch.inf)
    whole = torch.cat((scores, sink[:, None, None].expand(-1, scores.shape[1], 1)), -1)
    o = whole.softmax(-1)[..., :-1] @ v
    full = ~segment.empty
    alone = torch.full(scores.shape[:2], -torch.inf, dtype=torch.float64)
    alone[:, full] = scores[:, full].logsumexp(-1)
    return o, whole.logsumexp(-1) if segment.lse_includes_sink else alone


def test_a_wrong_sink_lies_outside_every_radius() -> None:
    segment = sunk(drawn(3, 7, 1.0), (-2.0, 0.5, 1.0, 3.0), counted=True)
    exact = attend_with_sink(segment)
    sink = segment.sink
    assert sink is not None
    for wrong in (replace(segment, sink=None), replace(segment, sink=sink.double() * (1 + 1e-10))):
        other = attend_with_sink(wrong)
        assert not bool(exact.o.overlaps(other.o).all())
