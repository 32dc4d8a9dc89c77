"""Gated RMSNorms in torch: conforming ones in several conventions,
and one with each planted fault.
"""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

import kdaverify as kv

EVERY: Final = ("fp32", "bf16", "fp16")
Norm = Callable[[Tensor, Tensor, Tensor, float, str], Tensor]


def act(z: Tensor, name: str) -> Tensor:
    return z * torch.sigmoid(z) if name == "silu" else torch.sigmoid(z)


def root(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def right(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return x * root(x, eps) * w * act(z, name)


def by_division(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return act(z, name) * (w * (x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)))


class Crossed(torch.autograd.Function):
    """The gradient of the gate is that of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        del ctx
        return x.clone(), z.clone()

    @staticmethod
    def backward(ctx: Any, dx: Tensor, dz: Tensor) -> tuple[Tensor, Tensor]:
        del ctx, dz
        return dx, dx


class Renormed(torch.autograd.Function):
    """The backward takes the normalised rows for the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        n = x * root(x, eps)
        ctx.save_for_backward(n)
        ctx.eps = eps
        return n

    @staticmethod
    def backward(ctx: Any, p: Tensor) -> tuple[Tensor, None]:
        (n,) = ctx.saved_tensors
        r = root(n, ctx.eps)
        again = n * r
        return r * (p - again * (p * again).mean(-1, keepdim=True)), None


def crossed(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    x, z = Crossed.apply(x, z)
    return right(x, z, w, eps, name)


def in_groups(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    half = max(1, x.shape[-1] // 2)
    parts = [part * root(part, eps) for part in x.split(half, -1)]
    return torch.cat(parts, -1) * w * act(z, name)


FAULTS: Final[Mapping[str, Norm]] = {
    "N1 SiLU for sigmoid": lambda x, z, w, eps, _: right(x, z, w, eps, "silu"),
    "N2 sigmoid for SiLU": lambda x, z, w, eps, _: right(x, z, w, eps, "sigmoid"),
    "N4 gradient of x for the gate": crossed,
    "N6 groups of half the width": in_groups,
    "N8 no weight": lambda x, z, w, eps, name: right(x, z, torch.ones_like(w) + 0 * w, eps, name),
    "N11 normalised again in the backward": lambda x, z, w, eps, name: (
        Renormed.apply(x, eps) * w * act(z, name)
    ),
    "N13 x / max(|x|, eps)": lambda x, z, w, eps, name: (
        x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=eps) * w * act(z, name)
    ),
    "N14 weight kept in bf16": lambda x, z, w, eps, name: right(
        x, z, w.bfloat16().float(), eps, name
    ),
    "eps outside the root": lambda x, z, w, eps, name: (
        x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * w * act(z, name)
    ),
    "eps added to the sum": lambda x, z, w, eps, name: (
        x * torch.rsqrt((x.square().sum(-1, keepdim=True) + eps) / x.shape[-1]) * w * act(z, name)
    ),
    "mean subtracted": lambda x, z, w, eps, name: right(
        x - x.mean(-1, keepdim=True), z, w, eps, name
    ),
    "squares in bf16": lambda x, z, w, eps, name: (
        x * root(x.bfloat16(), eps).float() * w * act(z, name)
    ),
    "a root of 16 bits": lambda x, z, w, eps, name: (
        x * (root(x, eps) * (1 + 2.0**-17)) * w * act(z, name)
    ),
    "weight w - 1": lambda x, z, w, eps, name: right(x, z, 1 + w, eps, name),
    "gate in bf16": lambda x, z, w, eps, name: (
        right(x, z, w, eps, name) / act(z, name) * act(z.bfloat16(), name).float()
    ),
    "gate before the norm": lambda x, z, w, eps, name: (
        right(x * act(z, name), torch.zeros_like(z), w, eps, "sigmoid") * 2
    ),
    "exp(z) / (1 + exp(z)) overflows": lambda x, z, w, eps, name: (
        right(x, z, w, eps, name) / torch.sigmoid(z) * z.exp() / (1 + z.exp())
    ),
}
"""N1 to N14 as in the list of public defects; what has no number is a classic."""


def adapted(norm: Norm, name: str) -> Any:
    def gated_rms_norm(
        x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
    ) -> Tensor:
        return norm(x.float(), gate.float(), weight.float(), eps, activation).to(x.dtype)

    return kv.kernel(op="gated_rms_norm", name=name, dtypes=EVERY)(gated_rms_norm)


def faulty(name: str) -> Any:
    return adapted(FAULTS[name], name)


@kv.kernel(op="gated_rms_norm", dtypes=EVERY, contract="gated-rms-norm-stored")
def three_roundings(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    """As the modules of model files: the normalised row,
    and its product with the weight, in x's type.
    """
    wide = x.float()  # once: autograd adds the gradients of every cast in x's type
    normed = (wide * root(wide, eps)).to(x.dtype)
    return (weight * normed * act(gate.float(), activation)).to(x.dtype)


@kv.kernel(op="gated_rms_norm", dtypes=EVERY, activation="sigmoid", eps=1e-5)
def fixed(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return right(x.float(), gate.float(), weight.float(), 1e-5, "sigmoid").to(x.dtype)


RIGHT_ONES: Final = {
    "in order": adapted(right, "in order"),
    "by division": adapted(by_division, "by division"),
    "three roundings": three_roundings,
    "options fixed": fixed,
}
