"""Inputs that are widened at each use: autograd rounds the gradient of each use to 16 bits, and
adds them there. The word +casts admits it, a failure names it, and faults stay faults under it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.short_conv import Parts, old_columns, sequences, shifted_in, summed

DTYPES: Final = ("bf16", "fp16")


class WithoutCurvature(torch.autograd.Function):
    """SiLU whose slope is s."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        s = torch.sigmoid(z.float())
        ctx.save_for_backward(s, z)
        return z.float() * s

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        s, z = ctx.saved_tensors
        return (dy[0] * s).to(z.dtype)


def act(z: Tensor, name: str | None) -> Tensor:
    """z in 16 bits, widened twice."""
    if not name or name == "none":
        return z.float()
    s = torch.sigmoid(z.float())
    return z.float() * s if name == "silu" else s


def sloped(z: Tensor, name: str | None) -> Tensor:
    if name != "silu":
        return act(z, name)
    found: Any = WithoutCurvature.apply(z)  # pyright: ignore[reportUnknownMemberType]
    return found


def norm(contract: str, activated: Any = act) -> Adapter:
    def normed(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
        root = torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + eps)
        return (x.float() * root * weight.float() * activated(gate, activation)).to(x.dtype)

    return kv.kernel(op="gated_rms_norm", dtypes=DTYPES, contract=contract)(normed)


def conv(contract: str, activated: Any = act) -> Adapter:
    @kv.kernel(op="short_conv", dtypes=DTYPES, contract=contract)
    def short_conv(
        x: Any, weight: Any, bias: Any, *, initial_state: Any, cu_seqlens: Any, activation: Any
    ) -> Any:
        def stored(z: Tensor, name: str | None) -> Tensor:
            return activated(z.to(x.dtype), name)

        parts = Parts(sequences, old_columns, summed, stored, shifted_in)
        return parts(x, weight, bias, initial_state, cu_seqlens, activation)

    return short_conv


PORTS: Final = {"gated-rms-norm": norm, "short-conv-stored": conv}


def rejected(adapter: Any) -> Iterator[tuple[PropertyCase, Outcome]]:
    detail = {"of": "both"}
    for _, problem in adapter.operator.panel(adapter, "smoke"):
        for one in check("gradients", adapter, problem, detail):
            if one.status.rejects:
                yield PropertyCase("gradients", problem, detail), one


@pytest.mark.parametrize("name", PORTS)
def test_sums_of_gradients_of_uses_in_16_bits_are_declared(name: str) -> None:
    assert not [*rejected(PORTS[name](f"{name}+casts"))]
    plain = PORTS[name](name)
    case, _ = next(rejected(plain))
    said = plain.operator.explain_error(case, plain, until=math.inf)
    assert "within the tolerance of" in said and f"{name}+casts" in said


@pytest.mark.parametrize("name", PORTS)
def test_a_wrong_slope_is_no_sum_of_two_roundings(name: str) -> None:
    assert any(rejected(PORTS[name](f"{name}+casts", sloped)))
