"""Kernels that read a sink are within tolerance wherever it enters their maximum."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.reference import attention_reference
from kdaverify.budgets.standard import Reference
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from tests.attention.segments import (
    emulated,
    enclosed,
    outputs_of,
    segment,
    textbook,
    worst_ratios,
)


def _sunk(above: float, *, std: float, s_k: int = 65, seed: int = 0) -> Segment:
    """fp32, with a sink so far above LSE."""
    given = segment(
        std=std, s_q=1, s_k=s_k, H=8, d_v=64, seed=seed, dtype=torch.float32, empty=False
    )
    level = textbook(given)[1].mean(1) + above
    return replace(given, sink=level.bfloat16().float())


def _with_sink(given: Segment) -> Reference:
    o, lse = AttentionPipeline()(given, torch.float64)
    exact = {name: enclosed(x) for name, x in outputs_of([(o, lse)]).items()}
    declared = attention_contract("online-fp32")
    return attention_reference([given], exact, outputs_of, declared, method="float64")


SINK_FIRST = (
    OnlineDesign(block=16, base="e", scale="scores", fused=False, sink="start"),
    OnlineDesign(block=32, base="e", sink="start", direction="backward"),
    OnlineDesign(block=24, scale="scores", sink="start", splits=4, cut="blocks"),
    OnlineDesign(block=96, base="e", fused=False, sink="start", splits=3, merge="tree"),
)


@pytest.mark.parametrize(
    ("above", "s_k", "std", "seed"),
    [(80.0, 17, 0.0, 1), (80.0, 17, 0.0, 4), (12.0, 17, 0.0, 3), (12.0, 65, 1.0, 1),
     (12.0, 65, 1.0, 2), (12.0, 700, 0.0, 2), (4.0, 700, 0.0, 0)],
)  # fmt: skip
def test_a_maximum_may_begin_with_the_sink(above: float, s_k: int, std: float, seed: int) -> None:
    """All keys of a row share the rounding of the exponent: 4.3 times the tolerance, once."""
    given = _sunk(above, std=std, s_k=s_k, seed=seed)
    reference = _with_sink(given)
    for design in SINK_FIRST:
        found = outputs_of([emulated("online-fp32", design, "fp32").forward(given)])
        assert max(worst_ratios(reference, found).values()) <= 1


@pytest.mark.parametrize("above", [4.0, 12.0, 80.0])
def test_a_sink_read_in_20_bits_is_over_tolerance(above: float) -> None:
    given = _sunk(above, std=1.0)
    assert given.sink is not None
    read = replace(given, sink=given.sink * (1 + 2.0**-20))
    found = outputs_of([emulated("online-fp32", OnlineDesign(sink="start"), "fp32").forward(read)])
    assert worst_ratios(_with_sink(given), found)["o"] > 1
