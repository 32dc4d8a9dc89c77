"""Arithmetic that kernels of operators with counted sums declare: what each freedom admits."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.checks.status import Status
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults import conv_taps, gated_norm, short_conv
from kdaverify.faults.gated_norm import act
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.short_conv.problem import ShortConvProblem
from tests.operators import norms
from tests.operators.test_counted_operators import plain_outcomes


def squared_in_fp16(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    inverse = (x.square().float().mean(-1, keepdim=True) + eps).rsqrt()
    product = weight * (x.float() * inverse).to(x.dtype)
    return (product * act(gate.float(), activation)).to(x.dtype)


def three_roundings(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    return norms.three_roundings(x, gate, weight, eps=eps, activation=activation)


DEEP_GATES: Final = GatedNormProblem(
    B=1,
    T=16,
    H=2,
    V=60,
    activation="silu",
    dtype="fp16",
    eps=1e-5,
    rank=2,
    seed=1251680036,
    value="deep",
)
"""Gates of 1e4: what rows add to dweight overflows fp16, and the sum over all rows does not."""


def test_what_overflows_where_the_contract_stores_it_is_not_judged() -> None:
    """Autograd keeps the terms of dweight in fp16 where the forward kept the normalised row so."""
    stored = plain_outcomes(norms.three_roundings, DEEP_GATES)
    assert {x.output: x.status for x in stored} == {
        "y": Status.PASS,
        "dx": Status.PASS,
        "dgate": Status.PASS,
        "dweight": Status.SKIP,
    }
    undeclared = kv.kernel(op="gated_rms_norm", dtypes=("fp16",))(three_roundings)
    found = {x.output: x.status for x in plain_outcomes(undeclared, DEEP_GATES)}
    assert found["dweight"].rejects


def test_what_overflows_where_the_contract_stores_nothing_is_rejected() -> None:
    """Squares of 2^8 in fp16."""
    options: dict[str, Any] = {"dtypes": ("fp16",), "contract": "gated-rms-norm-stored"}
    adapter = kv.kernel(op="gated_rms_norm", **options)(squared_in_fp16)
    found = plain_outcomes(adapter, DEEP_GATES.replace(value="single"))
    assert {"y", "dgate", "dweight"} <= {x.output for x in found if x.status.rejects}


def test_a_sigmoid_by_tanh_is_declared() -> None:
    problem = GatedNormProblem(T=12, V=60, activation="sigmoid", value="deep")

    def rejects(contract: str) -> bool:
        adapter = gated_norm.adapted(gated_norm.by_tanh, "by tanh", contract=contract)
        return any(x.status.rejects for x in plain_outcomes(adapter, problem))

    assert rejects("gated-rms-norm") and not rejects("gated-rms-norm+tanh")


def in_partial_sums(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    return gated_norm.in_partial_sums(x, gate, weight, eps=eps, activation=activation)


def test_partial_sums_in_16_bits_are_declared() -> None:
    problem = GatedNormProblem(dtype="bf16", T=33, V=129)

    def rejects(contract: str) -> bool:
        adapter = kv.kernel(op="gated_rms_norm", dtypes="bf16", contract=contract)(in_partial_sums)
        return any(x.status.rejects for x in plain_outcomes(adapter, problem))

    assert rejects("gated-rms-norm") and not rejects("gated-rms-norm+partials")


MANY_ROWS = ShortConvProblem(dtype="bf16", B=130, T=1, D=64, state="random", bias=True)


def of_sequences(contract: str) -> Adapter:
    return short_conv.adapted(
        short_conv.OneByOne(**vars(short_conv.RIGHT)), "one by one", ("bf16",), contract
    )


def test_running_sums_over_sequences_in_16_bits_are_declared() -> None:
    """A part of each sequence, rounded once, is no running sum of 130 of them."""

    def rejects(contract: str) -> bool:
        return any(x.status.rejects for x in plain_outcomes(of_sequences(contract), MANY_ROWS))

    assert rejects("short-conv") and rejects("short-conv+partials")
    assert not rejects("short-conv+sequences")


class TokenByToken(torch.autograd.Function):
    """The weight of every token; its gradient is a running sum over tokens in 16 bits."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, tokens: int) -> torch.Tensor:
        del ctx
        return w.expand(tokens, *w.shape).clone()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, None]:
        del ctx
        total = torch.zeros_like(given[0][0], dtype=torch.bfloat16)
        for one in given[0]:
            total += one.bfloat16()
        return total.float(), None


def of_tokens(stream: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
    taps = short_conv.windows(stream, w.shape[1])
    each: Any = TokenByToken.apply(w, len(taps[0]))  # pyright: ignore[reportUnknownMemberType]
    z = sum((each[..., j] * x for j, x in enumerate(taps)), torch.zeros(()))
    return z if b is None else z + b


def test_running_sums_over_sequences_are_none_over_tokens() -> None:
    problem = ShortConvProblem(dtype="bf16", B=2, T=65, D=33)
    parts = short_conv.RIGHT.replaced(take=of_tokens)
    adapter = short_conv.adapted(parts, "of tokens", ("bf16",), "short-conv+sequences")
    assert any(x.status.rejects for x in plain_outcomes(adapter, problem))


def test_a_failure_names_the_contract_under_which_it_conforms() -> None:
    adapter = of_sequences("short-conv")
    case = PropertyCase("gradients", MANY_ROWS, {"of": "both"})
    said = adapter.operator.explain_error(case, adapter, until=math.inf)
    assert "within the tolerance of short-conv+sequences" in said
    right = of_sequences("short-conv+sequences")
    assert right.operator.explain_error(case, right, until=math.inf) == ""


def test_tanh_does_not_cover_a_sigmoid_in_16_bits() -> None:
    parts = short_conv.RIGHT.replaced(act=conv_taps.by_complement)
    adapter = short_conv.adapted(parts, "by complement", contract="short-conv+tanh")
    problem = ShortConvProblem(T=12, D=9, value="deep")
    assert any(x.status.rejects for x in plain_outcomes(adapter, problem))


def test_an_unknown_freedom_is_declined() -> None:
    with pytest.raises(AdapterError, match=r"with any of \+tanh, \+partials, \+casts behind it"):
        kv.kernel(op="gated_rms_norm", contract="gated-rms-norm+fast")(three_roundings)
