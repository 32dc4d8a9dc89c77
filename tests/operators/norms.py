"""Gated RMSNorms in torch: conforming ones in several conventions,
and one with each planted fault.
"""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.faults import conforming_kernels, gated_norm, norm_shapes
from kdaverify.faults.fault import Setting
from kdaverify.faults.gated_norm import (
    EVERY,
    Norm,
    act,
    adapted,
    by_division,
    right,
    root,
    three_roundings,
)

PLAIN: Final = Setting(1.0, torch.Generator())


class OfRows(torch.autograd.Function):
    """The weight of every row, whose gradient sums full tiles of 16 rows alone from the second
    block of 256 on.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, rows: tuple[int, ...]) -> Tensor:
        del ctx
        return w.expand(*rows, len(w)).clone()

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor, None]:
        del ctx
        rows = dw.flatten(0, -2)
        whole = len(rows) if len(rows) <= 256 else len(rows) // 16 * 16
        return rows[:whole].sum(0), None


class Recovered(torch.autograd.Function):
    """n w, whose backward finds n again as y / w."""

    @staticmethod
    def forward(ctx: Any, n: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(n * w, w)
        return n * w

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        y, w = ctx.saved_tensors
        n = y / w.abs().clamp(min=1e-6) * w.sign()
        return dy * w, (dy * n).flatten(0, -2).sum(0)


FAULTS: Final[Mapping[str, Norm]] = {
    **{fault.id: fault.patch(PLAIN) for fault in (*gated_norm.FAULTS, *norm_shapes.FAULTS)},
    "x / max(|x|, eps)": lambda x, z, w, eps, name: (
        x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=eps) * w * act(z, name)
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
    "last tile of rows not in dweight": lambda x, z, w, eps, name: (
        x * root(x, eps) * OfRows.apply(w, x.shape[:-1]) * act(z, name)
    ),
    "normalised rows from y / w": lambda x, z, w, eps, name: (
        Recovered.apply(x * root(x, eps), w) * act(z, name)
    ),
    "sigmoid of at least -60": lambda x, z, w, eps, name: right(
        x, z.clamp(min=-60) if name == "sigmoid" else z, w, eps, name
    ),
    "eps at least 1e-6": lambda x, z, w, eps, name: right(x, z, w, max(eps, 1e-6), name),
    "eps at most 1e-5": lambda x, z, w, eps, name: right(x, z, w, min(eps, 1e-5), name),
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
"""Those of the catalogue by id; what has no number is a classic."""


def faulty(name: str) -> Any:
    return adapted(FAULTS[name], name)


@kv.kernel(op="gated_rms_norm", dtypes=EVERY, activation="sigmoid", eps=1e-5)
def fixed(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    return right(x.float(), gate.float(), weight.float(), 1e-5, "sigmoid").to(x.dtype)


RIGHT_ONES: Final = {
    "in order": adapted(right, "in order"),
    "by division": adapted(by_division, "by division"),
    "three roundings": three_roundings,
    "options fixed": fixed,
    "by tanh": conforming_kernels.norm_tanh,
    "16-bit partial sums": conforming_kernels.norm_partials,
}
