"""The schedule's costs; trials of splits; the same request in a batch and alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.bounded import precision_of
from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.attention.splits.plan import Heads, PartialFormat, SplitPlan
from kdaverify.operators.attention.splits.study import (
    ERROR_HEADS,
    MERGES,
    PARTIALS,
    REGIMES,
    SplitJudge,
    SplitStudy,
    batch_invariance,
    request,
)
from oracles.attention.exact import attend
from oracles.attention.split import combined, merge, merge_errors, partial_states

PLAN = SplitPlan((640, 1, 0, 70), 8, Heads(H=128))
CONTRACT = attention_contract("online64-bf16")
FP32 = PARTIALS[0]


def test_splits_of_a_request_cover_its_keys_once() -> None:
    for keys, spans in zip(PLAN.lengths, PLAN.spans, strict=True):
        assert [at for span in spans for at in range(*span)] == [*range(keys)]


def test_only_requests_that_are_split_have_partials() -> None:
    assert SplitPlan((64, 64), 1).partial_bytes(FP32) == 0
    split = sum(len(spans) for spans in PLAN.spans if len(spans) > 1)
    assert split > 1
    assert PLAN.partial_bytes(FP32) == 2 * split * 128 * (512 * 4 + 4)
    narrow = PartialFormat(FORMATS["bf16"], FORMATS["fp32"])
    assert PLAN.partial_bytes(narrow) == 2 * split * 128 * (512 * 2 + 4)


def test_balance_is_1_where_every_part_has_the_same_work() -> None:
    assert SplitPlan((640, 640), 4, Heads(H=128)).balance == 1
    assert PLAN.balance < 1


def test_the_partials_of_a_schedule_merge_into_the_whole() -> None:
    segment = request(CONTRACT, "rising", 640, replace(ERROR_HEADS, d_k=24, d_v=16), 1)
    parts = [torch.arange(*span) for span in PLAN.spans[0]]
    assert len(parts) > 1
    merged, whole = combined(partial_states(segment, parts)), attend(segment)
    for found, exact in zip(merged, whole, strict=True):
        assert bool((exact.error(found).abs() <= 2 * exact.radius + 1e-13).all())


@pytest.mark.parametrize("spread", [0.1, 5.0, 90.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_a_merge_may_interpolate_in_fp32_and_not_by_weights_in_16_bits(
    spread: float, scale: float
) -> None:
    """However small the weight of a part is, its difference from the other is rounded."""
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randn(64, 4, 32, generator=generator) * size for size in (1.0, scale))
    lse = [torch.randn(64, 4, generator=generator) * spread for _ in "ab"]
    exact, _ = merge(a, lse[0], b, lse[1])
    error, _ = merge_errors((a, lse[0]), (b, lse[1]), precision_of(FORMATS["fp32"]))
    w = torch.sigmoid(lse[1] - lse[0])[..., None]

    def ratio(w: torch.Tensor) -> float:
        return float(((a - w * (a - b) - exact).abs() / error.bound).max())

    assert ratio(w) < 0.5
    assert ratio(w.half().float()) > 10


def test_a_request_differs_from_its_batch_in_bits_where_it_is_cut_otherwise() -> None:
    found = {n: one for one in batch_invariance(PLAN, CONTRACT) for n in one.requests}
    assert [*found] == [*range(4)]
    otherwise = {n for n, spans in enumerate(PLAN.spans) if spans != PLAN.alone(n)}
    assert {n for n, one in found.items() if one.changed} == otherwise == {0}
    assert 0 < found[0].changed < 1
    assert found[0].largest < 2.0**-4


def test_requests_that_are_cut_alike_are_computed_once() -> None:
    plan = SplitPlan((128,) * 5, 132)
    assert [one.requests for one in batch_invariance(plan, CONTRACT)] == [(0, 1, 2, 3, 4)]


@pytest.mark.parametrize("regime", REGIMES)
def test_kernels_of_the_contract_are_within_tolerance_whatever_the_merge(regime: str) -> None:
    study = SplitStudy(CONTRACT, (regime,), keys=300, seed=5)
    assert study.steps == len(study.ways)
    conforming = [trial for trial in study.run() if trial.partial == "fp32"]
    assert max(trial.share for trial in conforming) <= 1


def test_a_partial_that_overflows_is_over_every_tolerance() -> None:
    segment = request(CONTRACT, "normal", 128, replace(ERROR_HEADS, H=2, d_v=16), 1)
    large = replace(segment, v=segment.v * 2.0**20)
    judge, fp16 = SplitJudge("normal", large, CONTRACT), PartialFormat(FORMATS["fp16"], FP32.lse)
    assert judge.trial(2, "at once", FP32).share <= 1
    assert math.isinf(judge.trial(2, "at once", fp16).share)


@pytest.mark.parametrize(("regime", "seed"), [("last", 3), ("first", 2)])
def test_many_declared_splits_are_within_tolerance_merged_from_either_end(
    regime: str, seed: int
) -> None:
    contract, heads = (
        attention_contract("online-fp32[splits:32]"),
        replace(ERROR_HEADS, d_k=136, d_v=128),
    )
    judge = SplitJudge(regime, request(contract, regime, 1024, heads, seed), contract)
    assert max(judge.trial(32, merge, FP32).share for merge in MERGES) <= 1
