"""Gated norms whose gate multiplies before the norm, as Mamba-2's: right ones pass every problem of
the panel in every format, wrong ones are found, and one call distinguishes the other order.
"""

# pyright: basic
# Functions of autograd have no types.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.gated_norm import EVERY, act, right, root

Norm = Callable[[Tensor, Tensor, Tensor, float, str], Tensor]
SMALL: Final = 20_000
"""Elements of problems that are judged here: the whole panel takes a minute."""


def gated(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    u = x * act(z, name)
    return u * root(u, eps) * w


def by_division(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    u = act(z, name) * x
    return w * (u / torch.sqrt((u * u).sum(-1, keepdim=True) / u.shape[-1] + eps))


def root_of_x(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return x * act(z, name) * root(x, eps) * w


def gate_apart_from_the_root(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    u = x * act(z, name)
    return u * root(x * act(z.detach(), name), eps) * w


def gate_in_bf16(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    u = x * act(z, name).bfloat16().float()
    return u * root(u, eps) * w


def eps_of_x(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    u = x * act(z, name)
    return u * torch.rsqrt(u.square().mean(-1, keepdim=True)).clamp(max=eps**-0.5) * w


def port(norm: Norm, contract: str = "gated-rms-norm", **options: Any) -> Any:
    def normed(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
        return norm(x.float(), gate.float(), weight.float(), eps, activation).to(x.dtype)

    given = {"dtypes": EVERY, "contract": contract, "first": "gate", **options}
    return kv.kernel(op="gated_rms_norm", **given)(normed)


def in_the_format_of_x(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    """The gated row is stored, as a port that normalises with another function does."""
    u = (x.float() * act(gate.float(), activation)).to(x.dtype).float()
    return (weight * (u * root(u, eps)).to(x.dtype)).to(x.dtype)


def rejected(adapter: Any) -> list[str]:
    return [
        name
        for name, p in adapter.operator.panel(adapter, "smoke")
        if p.B * p.T * p.H * p.V < SMALL
        for of, detail in (("panel", {}), ("gradients", {"of": "both"}))
        for one in check(of, adapter, p, detail)
        if one.status.rejects
    ]


@pytest.mark.parametrize("norm", [gated, by_division])
def test_a_right_one_passes(norm: Norm) -> None:
    assert port(norm).operator.misfit(port(norm)) is None
    assert not rejected(port(norm))


def test_one_that_stores_the_gated_row_says_so() -> None:
    given: dict[str, Any] = {"first": "gate", "dtypes": ("bf16", "fp16")}
    make = kv.kernel(op="gated_rms_norm", contract="gated-rms-norm-stored", **given)
    assert not rejected(make(in_the_format_of_x))
    assert rejected(kv.kernel(op="gated_rms_norm", **given)(in_the_format_of_x))


@pytest.mark.parametrize("norm", [root_of_x, gate_apart_from_the_root, gate_in_bf16, eps_of_x])
def test_a_wrong_one_is_found(norm: Norm) -> None:
    assert rejected(port(norm, dtypes="fp32"))


def test_one_call_distinguishes_the_other_order() -> None:
    adapter = port(right)
    found = adapter.operator.preflight(adapter)[-1]
    assert found.status is Status.CONVENTION and "declare first='norm'" in found.message
