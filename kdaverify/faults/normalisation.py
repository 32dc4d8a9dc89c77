"""Faults of l2norm (math.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import activated, part_of
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    torch_activations,
)
from oracles.stages import Named

_l2norm = partial(Fault, stage="l2norm", dtypes=("fp32", "bf16", "fp16"))
_RIGHT: Final = torch_activations()["l2norm"]
_BACKWARD_EPS = 1e-12


def normalised_by(
    norm: Callable[[Tensor, float], Tensor], strength: float
) -> Mapping[str, ActivationCall]:
    def forward(x: ActivationArguments) -> Tensor:
        wide = x.tensors["x"].float()
        wrong = wide / norm(wide, x.setting)
        return part_of(_RIGHT.forward(x).float(), wrong, strength).to(x.tensors["x"].dtype)

    return {"l2norm": replace(_RIGHT, forward=forward)}


def _eps_beside_the_mean(wide: Tensor, eps: float) -> Tensor:
    return (wide.square().mean(-1, keepdim=True) + eps).sqrt() * wide.shape[-1] ** 0.5


def _eps_outside_the_root(wide: Tensor, eps: float) -> Tensor:
    return wide.square().sum(-1, keepdim=True).sqrt() + eps


def _derived_with(eps: float, strength: float) -> Mapping[str, ActivationCall]:
    def backward(x: ActivationArguments) -> Named:
        assert x.cotangent is not None and _RIGHT.backward is not None
        wide, dy = x.tensors["x"].float(), x.cotangent.float()
        inverse = torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
        y = wide * inverse
        wrong = inverse * (dy - y * (y * dy).sum(-1, keepdim=True))
        right = _RIGHT.backward(x)["dx"]
        return {"dx": part_of(right.float(), wrong, strength).to(right.dtype)}

    return {"l2norm": replace(_RIGHT, backward=backward)}


FAULTS: Final = (
    _l2norm("P1", "eps is added to the mean of squares", "ml-explore/mlx-lm#1624", "A",
            "rows of norm 1e-2 and less", ("y",),
            activated(partial(normalised_by, _eps_beside_the_mean)), graded=True),
    _l2norm("P2", "eps is added outside the root", "fla-org/fla#508 (83845577), @9b9e47d7", "A",
            "rows of norm 1e-2 and less", ("y",),
            activated(partial(normalised_by, _eps_outside_the_root)), graded=True),
    _l2norm("B33", "the derivative of the norm at zero", "AI-Hypercomputer/maxtext#5295 (b)", "A",
            "rows of zeros", ("dx",), activated(partial(_derived_with, 0.0))),
    _l2norm("B34", "eps of the backward is another one", "AI-Hypercomputer/maxtext#5098 (review)",
            "A", "rows of norm 1e-2 and less", ("dx",),
            activated(partial(_derived_with, _BACKWARD_EPS)), graded=True),
)  # fmt: skip
