"""In float64 every design of the pipeline is attention, and its backward is the derivative."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import STAGES, AttentionPipeline
from oracles.attention.seesaw import seesaw
from oracles.attention.segment import Segment
from tests.attention.segments import segment, textbook

FREEDOMS: dict[str, tuple[Any, ...]] = {
    "direction": ("forward", "backward"),
    "splits": (1, 3, 8),
    "cut": ("even", "blocks", "uneven"),
    "merge": ("at once", "in order", "reversed", "tree"),
    "rescale": ("always", "lazy", "once"),
    "base": ("2", "e"),
    "scale": ("q", "scores", "exponent"),
    "fused": (True, False),
    "relative_to": ("running", "block"),
    "row_sum": ("rounded", "unrounded"),
}
PAIRS = [
    {a: x, b: y}
    for a, b in itertools.combinations(FREEDOMS, 2)
    for x in FREEDOMS[a]
    for y in FREEDOMS[b]
]


def _agrees(run: AttentionPipeline, given: Segment) -> None:
    found, exact = run(given, torch.float64), textbook(given)
    torch.testing.assert_close(found[0], exact[0], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(found[1], exact[1], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("s_k", [1, 16, 70])
def test_every_pair_of_freedoms_is_attention(s_k: int) -> None:
    given = segment(std=3.0, s_q=2, s_k=s_k)
    for fields in PAIRS:
        chosen: dict[str, Any] = {"splits": 3, **fields}
        _agrees(AttentionPipeline(OnlineDesign(block=16, **chosen)), given)


@pytest.mark.parametrize("s_k", [16, 32, 70])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_seesaw_is_attention(s_k: int, splits: int) -> None:
    design = OnlineDesign(block=16, seesaw=True, splits=splits, cut="blocks")
    _agrees(
        AttentionPipeline(design, stages=replace(STAGES, split=seesaw)), segment(std=3.0, s_k=s_k)
    )


def test_softmax_first_is_attention() -> None:
    divisions: tuple[Any, ...] = ("quotient", "reciprocal", "lse")
    for division in divisions:
        design = OnlineDesign(normalise_first=True, division=division)
        _agrees(AttentionPipeline(design), segment(std=3.0))
        _agrees(AttentionPipeline(replace(design, splits=3, base="e")), segment(std=3.0))


def test_no_keys_give_the_identity_of_merges() -> None:
    o, lse = AttentionPipeline()(segment(s_k=0, empty=False), torch.float64)
    assert not o.any() and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_a_scale_that_is_not_positive_is_attention(scale: float) -> None:
    _agrees(AttentionPipeline(OnlineDesign(block=16, splits=2)), replace(segment(), scale=scale))


def test_a_masked_value_does_not_matter_and_a_seen_one_does() -> None:
    given = segment(empty=False)
    v = given.v.clone()
    v[:, -1] = torch.nan  # the last key, which the last query alone sees
    found, _ = AttentionPipeline()(replace(given, v=v), torch.float64)
    right, _ = AttentionPipeline()(given, torch.float64)
    assert torch.equal(found[:, :-1], right[:, :-1]) and bool(found[:, -1].isnan().all())


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("with_lse", [True, False])
def test_the_backward_is_the_derivative(direction: Any, *, with_lse: bool) -> None:
    given = segment(empty=False)
    q, k, v = (x.clone().requires_grad_() for x in (given.q, given.k, given.v))
    o, lse = textbook(replace(given, q=q, k=k, v=v))
    rng = torch.Generator().manual_seed(1)
    do, dlse = (torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in (o, lse))
    loss = (o * do).sum() + (lse * dlse).sum() * with_lse
    wanted = torch.autograd.grad(loss, (q, k, v))
    design = OnlineDesign(block=16, direction=direction)
    found = AttentionBackward(design)(
        given, (o.detach(), lse.detach()), (do, dlse if with_lse else None), torch.float64
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


def test_rows_without_keys_give_no_gradient() -> None:
    given = segment(s_q=2)
    o, lse = textbook(given)
    found = AttentionBackward()(
        given, (o, lse), (torch.ones_like(o), torch.ones_like(lse)), torch.float64
    )
    assert all(bool(x.isfinite().all()) for x in found) and not found[0][:, 0].any()


@pytest.mark.parametrize(("s_q", "s_k"), [(0, 5), (0, 0), (2, 0)])
def test_segments_without_queries_or_keys_have_outputs_of_their_shape(s_q: int, s_k: int) -> None:
    given = segment(s_q=s_q, s_k=s_k, empty=False)
    o, lse = AttentionPipeline()(given, torch.float64)
    found = AttentionBackward()(given, (o, lse), (torch.ones_like(o), None), torch.float64)
    assert o.shape == (4, s_q, 16) and lse.shape == (4, s_q)
    assert [x.shape for x in found] == [given.q.shape, given.k.shape, given.v.shape]


@pytest.mark.parametrize("heads", ["packed", "alone"])
def test_segments_without_queries_have_gradients_of_their_shape(heads: Any) -> None:
    given = segment(s_q=0, empty=False)
    o, lse = AttentionPipeline()(given, torch.float64)
    found = AttentionBackward(OnlineDesign(heads=heads))(given, (o, lse), (o, None), torch.float64)
    assert [x.shape for x in found] == [x.shape for x in (given.q, given.k, given.v)]
    assert not any(bool(x.any()) for x in found)
