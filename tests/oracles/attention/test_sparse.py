"""Lists of cache slots and quantised rows: independent forms agree."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.attention.lists import PATTERNS, Lists
from kdaverify.operators.attention.sparse_problem import SparseProblem
from kdaverify.operators.attention.tolerance import counted
from oracles.attention.backward import AttentionBackward
from oracles.attention.balls import by_balls, by_decimals
from oracles.attention.design import OnlineDesign
from oracles.attention.exact import attend
from oracles.attention.fp8 import Fp8Rows, as_bytes, dequantised, of_bytes, quantised
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from oracles.attention.sink import attend_with_sink
from oracles.attention.sparse import SparseCall

SMALL: dict[str, Any] = {"B": 2, "s_q": 2, "H": 4, "h_kv": 2, "topk": 9, "d_k": 6, "d_v": 4}


def test_every_kind_of_list_has_a_pattern() -> None:
    assert {*PATTERNS} == {*get_args(Lists)}


@pytest.mark.parametrize("lists", PATTERNS)
@pytest.mark.parametrize("invalid", ["negative", "outside"])
@pytest.mark.parametrize("sink", [None, "mixed"])
def test_float64_agrees_with_balls_and_decimals(lists: Lists, invalid: Any, sink: Any) -> None:
    call = SparseProblem(lists=lists, invalid=invalid, sink=sink, **SMALL).inputs()
    for segment in call.segments():
        found = attend_with_sink(segment)
        for other in (by_balls(segment), by_decimals(segment)):
            for mine, theirs in zip(found, other, strict=True):
                same = mine.high == theirs.high
                gap = (mine.high - theirs.high).abs()
                assert bool((same | (gap <= mine.radius + theirs.radius)).all())


def test_a_list_of_all_slots_is_dense_attention() -> None:
    problem = SparseProblem(B=1, s_q=2, H=4, h_kv=2, pages=2, topk=32, lists="sorted")
    call = problem.inputs()
    named = call.indices[0, 0][call.seen[0, 0]].long()
    k = call.rows[named].transpose(0, 1)
    everything = torch.ones(2, len(named), dtype=torch.bool)
    q = call.q[0].transpose(0, 1)
    dense = attend(Segment(q, k, k[..., : call.d_v], call.softmax_scale, everything))
    for query, segment in enumerate(call.segments()):
        o, lse = attend(segment)
        assert torch.equal(call.indices[0, query].sort().values, call.indices[0, 0].sort().values)
        torch.testing.assert_close(o.high[:, 0], dense.o.high[:, query], rtol=0, atol=1e-14)
        torch.testing.assert_close(lse.high[:, 0], dense.lse.high[:, query], rtol=0, atol=1e-14)


def test_stacked_queries_have_the_sinks_of_their_heads() -> None:
    call = SparseProblem(sink="mixed", lists="holes", **SMALL).inputs()
    (stacked,), alone = call.stacked(), [attend_with_sink(part) for part in call.segments()]
    found = AttentionPipeline(OnlineDesign())(stacked, torch.float64)
    for x, parts in zip(found, zip(*alone, strict=True), strict=True):
        wanted = torch.cat([part.high for part in parts])
        torch.testing.assert_close(x, wanted, rtol=1e-12, atol=1e-12)


def test_an_index_that_occurs_twice_counts_twice() -> None:
    call = SparseProblem(**SMALL).inputs()
    twice = replace(call, indices=torch.cat((call.indices, call.indices), 2))
    for once, double in zip(call.segments(), twice.segments(), strict=True):
        (o, lse), (o2, lse2) = attend(once), attend(double)
        torch.testing.assert_close(o2.high, o.high, rtol=0, atol=1e-14)
        torch.testing.assert_close(lse2.high, lse.high + math.log(2), rtol=0, atol=1e-14)


def test_leading_entries_alone_count() -> None:
    call = SparseProblem(topk_lengths=(0, 5), **SMALL).inputs()
    assert call.seen.sum(-1).tolist() == [[0, 0], [5, 5]]
    assert call.empty.tolist() == [[True, True], [False, False]]


def test_stacked_segments_are_the_same_attention() -> None:
    call = SparseProblem(lists="empty", topk_lengths=(9, 4), **SMALL).inputs()
    parts = [attend(segment).o.high for segment in call.segments()]
    (whole,) = call.stacked()
    alone = [
        attend(Segment(q, k, v, whole.scale, visible)).o.high
        for q, k, v, visible in zip(
            whole.q.split(2), whole.k.split(1), whole.v.split(1), whole.visible, strict=True
        )
    ]
    torch.testing.assert_close(call.joined("o", parts), call.joined("o", alone))


def _gathered(call: SparseCall, leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    """o and LSE by gathers, which torch differentiates; 0 where LSE is that of nothing."""
    q, cache, *of_sink = leaves
    slots, H = cache.flatten(0, 1), q.shape[2]
    k = slots[call.indices.long().masked_fill(~call.seen, 1)]  # [B, s_q, topk, h_kv, d_k]
    k = k.repeat_interleave(H // k.shape[3], 3)
    scores = torch.einsum("bqhd,bqnhd->bqhn", q, k) * call.softmax_scale
    scores = scores.masked_fill(~call.seen[:, :, None], -torch.inf)
    sink = of_sink[0].view(-1, 1) if of_sink else torch.full((H, 1), -torch.inf)
    whole = torch.cat((scores, sink.expand(*scores.shape[:3], 1)), -1)
    returned = whole if call.lse_includes_sink else scores
    empty = torch.isneginf(returned).all(-1, keepdim=True)
    lse = returned.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty[..., 0], 0.0)
    nothing = torch.isneginf(whole).all(-1, keepdim=True)
    weights = whole.masked_fill(nothing, 0.0).softmax(-1)[..., :-1].masked_fill(nothing, 0.0)
    o = torch.einsum("bqhn,bqnhd->bqhd", weights, k[..., : call.d_v])
    return o, lse.transpose(1, 2)


@pytest.mark.parametrize("lists", PATTERNS)
@pytest.mark.parametrize("sink", [(None, None), ("mixed", False), ("mixed", True)])
def test_gradients_are_those_of_autograd_within_the_radius(lists: Lists, sink: Any) -> None:
    """Queries share slots; a slot that no list names holds NaN, and has a gradient of 0."""
    sizes: dict[str, Any] = {**SMALL, "pages": 1, "topk_lengths": (9, 6)}
    kinds: dict[str, Any] = {"lists": lists, "invalid": "outside", "sink": sink[0]}
    call = SparseProblem(lse_includes_sink=sink[1], **kinds, **sizes).inputs()
    given = [call.q, call.cache.nan_to_num(), *([] if call.sink is None else [call.sink])]
    leaves = [x.double().requires_grad_() for x in given]
    o, lse = _gathered(call, leaves)
    loss = {"do": torch.randn(o.shape).double(), "dlse": torch.randn(lse.shape).double()}
    wanted = torch.autograd.grad([o, lse], leaves, [loss["do"], loss["dlse"]])
    found = counted(call, loss, None, FORMATS["fp32"])
    assert [*found] == ["dq", "dcache", "dsink"][: len(wanted)]
    for (value, error), other in zip(found.values(), wanted, strict=True):
        assert bool(((value - other).abs() <= 2 * error.bound + 1e-300).all())
    unnamed = torch.ones(call.rows.shape[0], dtype=torch.bool)
    unnamed[call.indices[call.seen].long()] = False
    assert bool((found["dcache"][0].flatten(0, 1)[unnamed] == 0).all())


@pytest.mark.parametrize("sink", [None, "mixed"])
def test_stacked_queries_have_the_same_gradients(sink: Any) -> None:
    """As the reference kernels take them."""
    call = SparseProblem(lists="duplicates", sink=sink, **SMALL).inputs()
    loss = {"do": torch.randn(2, 2, 4, 4).double(), "dlse": torch.randn(2, 4, 2).double()}
    (stacked,), (given,) = call.stacked(), call.stacked_losses(loss)
    forward = AttentionPipeline(OnlineDesign())(stacked, torch.float64)
    part = AttentionBackward(OnlineDesign(block=4))(stacked, forward, given, torch.float64)
    found = call.joined_gradients([part])
    for name, (value, _) in counted(call, loss, None, FORMATS["fp32"]).items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


def _by_hand(code: int) -> float:
    """e4m3 with a bias of 7, no infinities, NaN where all bits but the sign are set."""
    sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    value = Fraction(fraction, 8) + (1 if exponent else 0)
    return float((-1) ** sign * value * Fraction(2) ** (max(exponent, 1) - 7))


def test_all_codes() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    found = Fp8Rows(codes, torch.ones(2), torch.zeros(0)).values
    wanted = torch.tensor([_by_hand(code) for code in range(256)], dtype=torch.float64)
    assert torch.equal(found.nan_to_num(-1e9), wanted.nan_to_num(-1e9))


def test_a_token_of_the_model_has_656_bytes_and_they_are_where_they_belong() -> None:
    rows = quantised(torch.randn(5, 576, dtype=torch.float64), 512, powers=False)
    stored = as_bytes(rows)
    assert stored.shape == (5, 656)
    assert torch.equal(stored[:, 512:528].contiguous().view(torch.float32), rows.scales)
    assert torch.equal(stored[:, 528:].contiguous().view(torch.bfloat16), rows.others)
    again = of_bytes(stored, 512)
    assert torch.equal(dequantised(again), dequantised(rows))


@pytest.mark.parametrize("powers", [True, False])
def test_a_quantised_value_is_off_by_half_a_spacing_of_its_tile(powers: bool) -> None:
    x = torch.randn(7, 264, dtype=torch.float64) * torch.logspace(-3, 3, 7)[:, None]
    rows = quantised(x, 256, powers=powers)
    off = (dequantised(rows)[:, :256] - x[:, :256]).abs()
    spread = rows.scales.double().repeat_interleave(128, -1)
    assert bool((off <= torch.maximum(x[:, :256].abs() * 2.0**-4, spread * 2.0**-10)).all())
    mantissas, _ = torch.frexp(rows.scales)
    assert bool((mantissas == 0.5).all()) == powers


def test_products_are_exact_in_float64_and_read_as_kernels_do() -> None:
    fields: dict[str, Any] = {"cache": "fp8", "scales": "any", "d_k": 132, "d_v": 128, "topk": 5}
    call = SparseProblem(dtype="bf16", H=2, **fields).inputs()
    rows = of_bytes(call.cache, 128)
    slot = int(call.indices[0, 0, 0])
    value, scale = (float(x.flatten(0, 1)[slot, 0, 0]) for x in (rows.values, rows.scales))
    assert Fraction(value) * Fraction(scale) == Fraction(float(call.rows[slot, 0, 0]))
    bf16 = FORMATS["bf16"].round
    read = call.as_read(bf16, bf16).rows
    wanted = bf16(rows.values * bf16(rows.scales).double()).flatten(0, 1)
    assert torch.equal(read[..., :128].nan_to_num(), wanted.nan_to_num())
