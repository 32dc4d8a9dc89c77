"""Sinks in every design beside float64, in every regime, and misread."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.eager_attention import ATTENTION, softmax_attention
from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import operator_kernel
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.sinks import ABOVE, sinks
from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from oracles.attention.sink import softmax_of
from tests.attention.segments import segment

LEVELS = (-math.inf, -3.0, 2.0, 9.0, 60.0, 0.5)
WHOLE = 2**30
DESIGNS = (
    OnlineDesign(block=16),
    OnlineDesign(block=16, sink="start"),
    OnlineDesign(block=16, sink="start", splits=3),
    OnlineDesign(block=16, splits=3, cut="blocks"),
    OnlineDesign(block=16, sink="start", relative_to="block"),
    OnlineDesign(normalise_first=True, block=WHOLE, sink="start"),
    OnlineDesign(normalise_first=True, block=WHOLE, sink="start", division="lse", scale="scores"),
    OnlineDesign(rescale="once", sink="start", base="e", scale="q", fused=False),
    OnlineDesign(rescale="lazy", sink="start"),
    OnlineDesign(heads="alone"),
)


def sunk(s_k: int, *, counted: bool) -> Segment:
    given = segment(H=6, h_kv=2, s_q=5, s_k=s_k)
    return replace(given, sink=torch.tensor(LEVELS), lse_includes_sink=counted)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("s_k", [70, 2, 0])
def test_every_design_is_that_of_the_oracle(s_k: int, *, counted: bool) -> None:
    given, work = sunk(s_k, counted=counted), torch.float64
    exact = softmax_of(given)
    rng = torch.Generator().manual_seed(3)
    loss = torch.randn(6, 5, 16, generator=rng).double(), torch.randn(6, 5, generator=rng).double()
    wanted, (level, _) = exact.backward(*loss), exact.returned_lse
    for design in DESIGNS:
        o, lse = AttentionPipeline(design)(given, work)
        torch.testing.assert_close(o, exact.o[0], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(lse, level, rtol=1e-13, atol=1e-14)
        found = AttentionBackward(design)(given, (o, lse), loss, work)
        for gradient, (value, _) in zip(found, wanted, strict=True):
            torch.testing.assert_close(gradient, value, rtol=1e-12, atol=1e-12)


def test_sinks_are_numbers_of_bf16_beside_the_logits() -> None:
    normal = torch.linspace(-1, 1, 9).double()
    for name in ("normal", *ABOVE):
        found = sinks(name, normal, "high", 70)
        assert torch.equal(found, found.bfloat16().float())
        near = found[torch.isfinite(found)]
        assert name == "normal" or float((near - 1000).abs().min()) < 90


def _misread(wrong: str, sink: Tensor, scale: float) -> Tensor | None:
    if wrong == "first":
        return sink[:1].expand_as(sink)
    factors = {"counted": 1.0, "scaled": scale, "base 2": math.log(2)}
    return None if wrong == "ignored" else sink * factors[wrong]


def _port(wrong: str) -> Any:
    def port(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool, sink: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        given: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal}
        read = None if sink is None else _misread(wrong, sink, softmax_scale)
        found = [softmax_attention(*x, sink=read, **given) for x in zip(q, k, v, strict=True)]
        o, lse = (torch.stack(x) for x in zip(*found, strict=True))
        if sink is not None and wrong == "counted":
            lse = torch.logaddexp(lse, sink[:, None])
        return o, lse

    declared = {"name": "port", "contract": "math-fp32"}
    return operator_kernel("attention", port, declared, FRAMEWORKS["torch"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("counted", "behaves as 'yes'"),
        ("ignored", "the sink is ignored"),
        ("scaled", "multiplied by softmax_scale"),
        ("base 2", "taken to base 2"),
        ("first", "one sink is used for all heads"),
    ],
)
def test_usual_misreadings_of_a_sink_have_a_sentence(wrong: str, said: str) -> None:
    port = _port(wrong)
    message = port.operator.misfit(port)
    assert message is not None
    assert said in message


def _needing(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool, sink: Tensor
) -> None:
    """Never called."""


def _without(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> None:
    """Never called."""


def test_a_function_that_needs_a_sink_is_given_one_in_every_problem() -> None:
    plain = AttentionProblem(s_q=3, s_k=5)
    needing = operator_kernel(
        "attention",
        _needing,
        {"name": "needing", "sink": "required", "lse_includes_sink": "yes"},
        FRAMEWORKS["torch"],
    )
    inside = needing.operator.within(needing, plain)
    assert (inside.sink, inside.lse_includes_sink) == ("normal", True)
    assert ATTENTION.operator.within(ATTENTION, plain) == plain
    without = operator_kernel(
        "attention",
        _without,
        {"name": "without"},
        FRAMEWORKS["torch"],
    )
    assert without.operator.within(without, plain.replace(sink="high")) == plain
