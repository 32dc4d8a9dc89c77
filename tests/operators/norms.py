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
from kdaverify.faults import gated_norm
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

FAULTS: Final[Mapping[str, Norm]] = {
    **{fault.id: fault.patch(PLAIN) for fault in gated_norm.FAULTS},
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
}
