"""Conforming kernels are within tolerance; kernels of a weaker contract are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.attention.ensemble import ReferenceKernel
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sums import from_last
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import LN2
from oracles.attention.segment import Segment
from tests.attention.segments import (
    emulated,
    outputs_of,
    reference_of,
    segment,
    textbook,
    worst_ratios,
)


@pytest.mark.parametrize("std", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_designs_outside_the_ensemble_are_within_tolerance(std: float, dtype: str) -> None:
    given = segment(std=std, s_k=300, dtype=FORMATS[dtype].dtype, H=8)
    contract = f"online64-{dtype}"
    reference = reference_of(given, contract, dtype)
    cuts: tuple[tuple[int, int, Any], ...] = ((48, 3, "tree"), (17, 5, "reversed"))
    for block, splits, merge in cuts:
        design = OnlineDesign(block, "backward", splits, "uneven", merge, base="e", scale="scores")
        found = outputs_of([emulated(contract, design, dtype).forward(given)])
        assert max(worst_ratios(reference, found).values()) <= 1


@pytest.mark.parametrize(
    ("stored", "std", "output"),
    [
        ("S:bf16", 8.0, "lse"),
        ("S:bf16", 8.0, "o"),
        ("P:e4m3", 1.0, "o"),
        ("partial_o:bf16", 8.0, "o"),
        ("partial_lse:bf16", 1.0, "lse"),
    ],
)
def test_a_narrower_format_than_declared_is_over_tolerance(
    stored: str, std: float, output: str
) -> None:
    given = segment(std=std, s_k=500, H=16, s_q=4, d_v=64, dtype=torch.bfloat16)
    reference = reference_of(given, "online64-bf16")
    design = OnlineDesign(splits=8 if "partial" in stored else 1)
    found = outputs_of([emulated(f"online64-bf16[{stored}]", design).forward(given)])
    assert worst_ratios(reference, found)[output] > 1


def test_row_sums_of_rounded_p_have_to_be_declared() -> None:
    given = segment(s_k=500, H=16, dtype=torch.bfloat16)
    found = outputs_of([emulated("online64-bf16", OnlineDesign(row_sum="rounded")).forward(given)])
    assert worst_ratios(reference_of(given, "online64-bf16"), found)["lse"] > 1
    free = worst_ratios(reference_of(given, "online64-bf16[row_sum:free]"), found)
    assert max(free.values()) <= 1


def test_lazy_rescaling_has_to_be_declared_and_is_then_within_tolerance() -> None:
    given = segment(std=8.0, s_k=500, H=16, dtype=torch.bfloat16)
    lazy = OnlineDesign(block=32, rescale="lazy", lazy=8.0)
    found = outputs_of([emulated("online64-bf16", lazy).forward(given)])
    assert max(worst_ratios(reference_of(given, "online64-bf16[lazy:8]"), found).values()) <= 1


def _peaked(seed: int) -> Segment:
    return segment(
        std=6.0, s_q=1, s_k=65, H=1, h_kv=1, seed=seed, dtype=torch.bfloat16, empty=False
    )


@pytest.mark.parametrize("row_sum", ["unrounded", "rounded"])
@pytest.mark.parametrize("seed", [1, 14, 38, 51, 71])
def test_the_largest_weight_is_rounded_where_the_maximum_lags(seed: int, row_sum: Any) -> None:
    given, contract = _peaked(seed), f"online64-bf16[lazy:8;row_sum:{row_sum}]"
    lazy = OnlineDesign(row_sum=row_sum, rescale="lazy", lazy=8.0)
    reference = reference_of(given, contract)
    for block in (16, 24, 48):
        for direction in ("forward", "backward"):
            design = replace(lazy, block=block, direction=direction)
            found = outputs_of([emulated("online64-bf16", design).forward(given)])
            assert max(worst_ratios(reference, found).values()) <= 1


def test_lagging_admits_no_narrower_weights() -> None:
    given, lazy = _peaked(14), OnlineDesign(16, "backward", rescale="lazy", lazy=8.0)
    found = outputs_of([emulated("online64-bf16[P:e4m3]", lazy).forward(given)])
    assert max(worst_ratios(reference_of(given, "online64-bf16[lazy:8]"), found).values()) > 1


def _last_wins(seed: int) -> Segment:
    """65 keys, of which the last has all weight but e^-6."""
    given = segment(std=0.3, s_q=4, s_k=65, H=8, d_v=64, seed=seed, empty=False)
    q = given.q + 6 * given.of_heads(given.k)[:, -1:] / given.q.shape[-1] ** 0.5
    q, k, v = (x.float() for x in (q, given.k, given.v))
    return Segment(q, k, v, given.scale, torch.ones_like(given.visible))


def _summed_from_last(design: OnlineDesign, stored: str = "online-fp32") -> ReferenceKernel:
    one = emulated(stored, design, "fp32")
    return replace(one, arithmetic=replace(one.arithmetic, dot=from_last))


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_begin_with_the_key_that_wins_are_within_tolerance(seed: int) -> None:
    given, design = _last_wins(seed), OnlineDesign(block=96, direction="backward")
    found = outputs_of([_summed_from_last(design).forward(given)])
    assert max(worst_ratios(reference_of(given, "online-fp32", "fp32"), found).values()) <= 1


def test_such_sums_admit_no_weights_in_16_bits() -> None:
    given, design = _last_wins(0), OnlineDesign(block=96, direction="backward")
    found = outputs_of([_summed_from_last(design, "online-fp32[P:fp16]").forward(given)])
    assert worst_ratios(reference_of(given, "online-fp32", "fp32"), found)["o"] > 1


def _relative_to_lse(given: Segment) -> dict[str, Tensor]:
    """P = exp(S - LSE), as ports in torch write it."""
    q, k, v = (x.float() for x in (given.q, given.of_heads(given.k), given.of_heads(given.v)))
    scores = (q @ k.mT * given.scale).masked_fill(~given.visible, -torch.inf)
    lse = scores.logsumexp(-1)
    return {"o": (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp() @ v, "lse": lse}


def _in_four_parts(given: Segment) -> dict[str, Tensor]:
    """The same over parts of the keys, each weighted by exp(its LSE - LSE)."""
    keys = torch.arange(given.k.shape[1]).tensor_split(4)
    parts = [_relative_to_lse(given.over(some)) for some in keys]
    lse = torch.stack([part["lse"] for part in parts]).logsumexp(0)
    known = lse.nan_to_num(neginf=0.0)
    weighted = [(part["lse"] - known).exp()[..., None] * part["o"] for part in parts]
    return {"o": torch.stack(weighted).sum(0), "lse": lse}


def _sharp(std: float) -> Segment:
    return segment(std=std, s_k=70, dtype=torch.float32, H=8, s_q=20)


@pytest.mark.parametrize("std", [1.0, 8.0, 100.0])
def test_weights_relative_to_lse_are_within_tolerance_where_declared(std: float) -> None:
    given = _sharp(std)
    whole = reference_of(given, "math-fp32[weights:lse]", "fp32")
    assert max(worst_ratios(whole, _relative_to_lse(given)).values()) <= 1
    parts = reference_of(given, "online-fp32[weights:lse;splits:4]", "fp32")
    assert max(worst_ratios(parts, _in_four_parts(given)).values()) <= 1


def test_weights_relative_to_lse_have_to_be_declared() -> None:
    given = _sharp(100.0)
    assert worst_ratios(reference_of(given, "math-fp32", "fp32"), _relative_to_lse(given))["o"] > 1


def test_weights_relative_to_lse_admit_no_narrower_ones() -> None:
    given = _sharp(8.0)
    found = outputs_of([emulated("online-fp32[P:fp16]", OnlineDesign(), "fp32").forward(given)])
    assert worst_ratios(reference_of(given, "math-fp32[weights:lse]", "fp32"), found)["o"] > 1


@pytest.mark.parametrize("power", [-126, -110])
@pytest.mark.parametrize("seen", [0.0, 2.0**-126])
def test_an_output_of_weights_below_the_smallest_normal_number_may_be_0(
    power: int, seen: float
) -> None:
    """The keys with weight have values of (nearly) 0; the others give o all that it has."""
    given = segment(H=1, h_kv=1, s_q=4, s_k=60, dtype=torch.float32, empty=False)
    q, k, v = torch.zeros_like(given.q), torch.zeros_like(given.k), given.v.clone()
    q[..., 0], k[..., 0] = 1.0, torch.linspace(0, -100, 60) / given.scale
    v[:, torch.linspace(0, -100, 60) / LN2 > power] = seen
    given = replace(given, q=q, k=k, v=v)
    found = textbook(given)
    flushed = torch.full_like(found[0], seen)
    wrong = {"o": flushed.float(), "lse": found[1].float()}
    ratio = worst_ratios(reference_of(given, "online-fp32", "fp32"), wrong)["o"]
    assert (ratio <= 1) == (power == -126)


def test_only_what_is_rounded_to_sixteen_bits_is_compared_with_its_nearest_kernel() -> None:
    reference = reference_of(segment(s_k=130, H=8), "seesaw-bf16")
    assert reference.budgets["o"].peers
    assert not reference.budgets["lse"].peers


@pytest.mark.parametrize(
    ("std", "s_k", "H", "s_q", "seed"),
    [(3.0, 65, 4, 1, 0), (8.0, 17, 4, 4, 3), (8.0, 17, 16, 1, 3)],
)
def test_few_partials_in_16_bits_may_err_by_more_than_many(
    std: float, s_k: int, H: int, s_q: int, seed: int
) -> None:
    given = segment(
        std=std, s_q=s_q, s_k=s_k, H=H, d_v=128, seed=seed, dtype=torch.bfloat16, empty=False
    )
    contract = "online64-bf16[partial_o:bf16]"
    found = outputs_of([emulated(contract, OnlineDesign(splits=2)).forward(given)])
    assert max(worst_ratios(reference_of(given, contract), found).values()) <= 1
    narrower = emulated("online64-bf16[partial_o:bf16;P:e4m3]", OnlineDesign(splits=2))
    assert (
        worst_ratios(reference_of(given, contract), outputs_of([narrower.forward(given)]))["o"] > 1
    )
