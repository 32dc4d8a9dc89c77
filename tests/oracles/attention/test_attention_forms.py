"""Float64, balls and decimals agree within their radii over every regime; splits, merges, gradients
and the schedule hold what they promise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem
from kdaverify.operators.attention.regimes import REGIMES, VALUES
from oracles.attention.balls import by_balls, by_decimals
from oracles.attention.exact import attend, attend_backward
from oracles.attention.segment import Segment, seen
from oracles.attention.split import combined, merge, partial_states, schedule
from oracles.enclosure import Enclosure

SHAPES = (
    {"s_q": 3, "s_k": 5, "H": 2, "causal": True},
    {"s_q": 4, "s_k": 2, "H": 2, "h_kv": 2, "causal": True},
    {"s_q": 1, "s_k": 9, "H": 3, "d_k": 5, "d_v": 7},
)
DTYPES = ("fp32", "bf16", "fp16")


def problems() -> Iterator[AttentionProblem]:
    """Over 500: every regime of logits with every shape, format and scale, values in turn."""
    values = itertools.cycle(VALUES)
    for number, (logits, shape, dtype, scale) in enumerate(
        itertools.product(REGIMES, SHAPES, DTYPES, ("default", "model", "small", "model"))
    ):
        fields: dict[str, Any] = {"d_k": 6, "d_v": 3, "value": next(values), **shape}
        yield AttentionProblem(
            dtype=dtype,
            seed=number,
            logits=logits,  # pyright: ignore[reportArgumentType]
            scale=scale,
            **fields,  # pyright: ignore[reportArgumentType]
        )


def agree(a: Enclosure, b: Enclosure) -> bool:
    known = torch.isfinite(a.high)
    same = torch.equal(known, torch.isfinite(b.high)) and torch.equal(
        a.high[~known], b.high[~known]
    )
    return same and bool(a.overlaps(b)[known].all())


def test_three_forms_agree_within_their_radii() -> None:
    count, widest = 0, 0.0
    for problem in problems():
        for segment in problem.inputs().segments():
            forms = [attend(segment), by_balls(segment)]
            if count % 3 == 0:
                forms.append(by_decimals(segment))
            for one, other in itertools.combinations(forms, 2):
                assert agree(one.o, other.o), problem.to_json()
                assert agree(one.lse, other.lse), problem.to_json()
            finite = torch.isfinite(forms[0].lse.high)
            level = forms[0].lse.high[finite].abs().clamp(min=1.0)
            widest = max(widest, float((forms[0].lse.radius[finite] / level).max()))
            count += 1
    assert count >= 500
    # An infinite radius would agree with everything.
    assert widest < 1e-12


@pytest.mark.parametrize("logits", ["normal", "sharp", "rising", "high"])
def test_any_splits_in_any_order_merge_to_the_whole(logits: str) -> None:
    problem = MlaDecodeProblem.model_validate(
        {"k_lengths": (37,), "s_q": 3, "H": 4, "h_kv": 2, "logits": logits}
    )
    (segment,) = problem.inputs().segments()
    exact, keys = attend(segment), torch.arange(37)
    for cuts in ((1, 36), (5, 5, 20), (12, 24, 36)):
        states = [*partial_states(segment, torch.tensor_split(keys, cuts))]
        for order in (states, states[::-1]):
            o, lse = combined(order)
            assert torch.allclose(o, exact.o.high, rtol=1e-11, atol=1e-12)
            assert torch.allclose(lse, exact.lse.high, rtol=1e-13, atol=1e-12)


def test_an_empty_part_is_the_identity_and_a_part_of_no_weight_adds_nothing() -> None:
    o, lse = torch.randn(2, 3, 4).double(), torch.randn(2, 3).double()
    nothing = torch.full_like(lse, -math.inf)
    for junk in (torch.zeros_like(o), torch.full_like(o, math.nan)):
        found = merge(o, lse, junk, nothing)
        assert torch.equal(found[0], o)
        assert torch.equal(found[1], lse)
    empty = merge(torch.zeros_like(o), nothing, torch.zeros_like(o), nothing)
    assert bool((empty[0] == 0).all())
    assert bool(torch.isneginf(empty[1]).all())


def drawn(s_q: int, s_k: int, spread: float) -> Segment:
    generator = torch.Generator().manual_seed(5)
    sizes = ((4, s_q, 6), (2, s_k, 6), (2, s_k, 5))
    q, k, v = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    return Segment(spread * q, k, v, 0.4, seen(s_q, s_k, masked=True))


def changed(segment: Segment, name: str, step: Tensor) -> Segment:
    tensors = {part: getattr(segment, part) for part in ("q", "k", "v")}
    tensors[name] = tensors[name] + step
    return replace(segment, **tensors)


@pytest.mark.parametrize("sizes", [(3, 7), (5, 3), (1, 1)])
@pytest.mark.parametrize("spread", [0.1, 1.0, 6.0])
def test_gradients_are_certified_differences(sizes: tuple[int, int], spread: float) -> None:
    """A central difference of step h is off by h^2 / 6 of the third derivative, and by the radii
    over h; half the step quarters the first.
    """
    segment = drawn(*sizes, spread)
    generator = torch.Generator().manual_seed(6)
    exact = attend(segment)
    d_o = torch.randn(exact.o.high.shape, generator=generator, dtype=torch.float64)
    d_lse = torch.randn(exact.lse.high.shape, generator=generator, dtype=torch.float64)
    found = attend_backward(segment, d_o, d_lse)

    def loss(one: Segment) -> tuple[float, float]:
        at = attend(one)
        lse = at.lse.high.masked_fill(torch.isneginf(at.lse.high), 0.0)
        radius = (d_o.abs() * at.o.radius).sum() + (d_lse.abs() * at.lse.radius).sum()
        return float((d_o * at.o.high).sum() + (d_lse * lse).sum()), float(radius)

    for name, gradient in zip(("q", "k", "v"), found, strict=True):
        for _ in range(4):
            way = torch.randn(gradient.high.shape, generator=generator, dtype=torch.float64)
            wanted = float((gradient.high * way).sum())
            slopes, errors = list[float](), list[float]()
            for step in (2.0**-10, 2.0**-11):
                ends = [loss(changed(segment, name, sign * step * way)) for sign in (1, -1)]
                slopes.append((ends[0][0] - ends[1][0]) / (2 * step))
                errors.append((ends[0][1] + ends[1][1] + 1e-15) / (2 * step))
            # Richardson: what is left of the truncation is at most a third of what halving changed.
            truncation = abs(slopes[1] - slopes[0])
            certain = truncation + errors[1] + float((gradient.radius * way.abs()).sum())
            assert abs(slopes[1] - wanted) <= certain


@pytest.mark.parametrize("sizes", [(3, 7), (5, 3), (4, 0)])
def test_gradients_are_those_of_autograd_within_the_radius(sizes: tuple[int, int]) -> None:
    segment = drawn(*sizes, 2.0)
    leaves = [x.clone().requires_grad_() for x in (segment.q, segment.k, segment.v)]
    q, k, v = leaves[0], *(segment.of_heads(x) for x in leaves[1:])
    full = ~segment.empty
    scores = (q @ k.mT * segment.scale).masked_fill(~segment.visible, -torch.inf)[:, full]
    lse = scores.logsumexp(-1)
    o = (scores - lse[..., None]).exp() @ v
    d_o, d_lse = torch.ones(4, sizes[0], 5).double(), torch.ones(4, sizes[0]).double() / 3
    wanted = torch.autograd.grad(
        [o, lse], leaves, [d_o[:, full], d_lse[:, full]], materialize_grads=True
    )
    for gradient, other in zip(attend_backward(segment, d_o, d_lse), wanted, strict=True):
        assert bool(((gradient.high - other).abs() <= 2 * gradient.radius + 1e-300).all())


@pytest.mark.parametrize("sms", [1, 7, 78, 132])
@pytest.mark.parametrize("lengths", [(0,), (1, 64, 65), (5000, 0, 100, 63), (64,) * 40, (131072,)])
def test_every_block_is_scheduled_once_and_in_order(lengths: tuple[int, ...], sms: int) -> None:
    plan = schedule(lengths, sms=sms, s_q=2, H=64, h_kv=1)
    done = [
        (cut.request, n) for part in plan.parts for cut in part for n in range(cut.first, cut.last)
    ]
    blocks = [-(-max(n, 1) // 64) for n in lengths]
    assert done == [(request, n) for request, count in enumerate(blocks) for n in range(count)]
    splits = [b - a for a, b in itertools.pairwise(plan.num_splits)]
    assert splits == [
        sum(cut.request == n for part in plan.parts for cut in part) for n in range(len(lengths))
    ]


def test_pages_are_gathered_bit_for_bit() -> None:
    problem = MlaDecodeProblem(k_lengths=(40, 0, 17), s_q=2, page=16, table="shared")
    call = problem.inputs()
    for request, length in enumerate(problem.k_lengths):
        rows = call.gathered(request)
        wanted = [
            call.cache[int(call.block_table[request, j // 16]), j % 16] for j in range(length)
        ]
        assert len(rows) == length
        assert all(torch.equal(x, y) for x, y in zip(rows, wanted, strict=True))
