"""Kernels that activate the gate themselves: the raw gate that stands for a given decay, and the
decay that a raw gate stands for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kdaverify.problems import Problem
from oracles.inputs import Inputs

# How close to its ends a bounded activation is tested to come.
NEAREST = 2.0**-24


@dataclass(frozen=True)
class RawGate:
    """One of the two activations of KDA, with parameters that differ in every head and channel, so
    that a wrong index shows.

    Math: 6; softplus: g = -exp(A_log) softplus(x + dt_bias); bounded: g = lower_bound
    sigmoid(exp(A_log) (x + dt_bias)).

    Args:
        form: "softplus" or "bounded".
        dtype: the type in which the kernel takes x.
        lower_bound: of the bounded form.
    """

    form: Literal["softplus", "bounded"]
    dtype: torch.dtype = torch.float32
    lower_bound: float = -5.0

    def parameters(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """A_log [HV] and dt_bias [HV, K], fp32, multiples of 1/64:
        exact in every format that may hold them.
        """
        heads = torch.arange(inputs.HV, device=inputs.g.device)
        channels = torch.arange(inputs.K, device=inputs.g.device)
        A_log = (heads % 5 - 2).float() / 8
        dt_bias = ((heads[:, None] * 3 + channels) % 17 - 8).float() / 64
        return A_log, dt_bias

    def raw(self, inputs: Inputs) -> Tensor:
        """x [B, T, HV, K] in `dtype`, the raw gate whose activation is closest to g, and finite
        where none reaches it.
        """
        A_log, dt_bias = (parameter.double() for parameter in self.parameters(inputs))
        amplitude, g = A_log.exp()[:, None], inputs.g.double()
        if self.form == "bounded":
            return (torch.logit(g / self.lower_bound, eps=NEAREST) / amplitude - dt_bias).to(
                self.dtype
            )
        z = -g / amplitude
        # The inverse of softplus, log(exp(z) - 1), without its overflow.
        return (z + torch.log(-torch.expm1(-z)) - dt_bias).to(self.dtype)

    def received(self, inputs: Inputs) -> Inputs:
        """The call as the kernel effectively gets it: g in float64,
        exactly what the rounded x stands for.
        """
        A_log, dt_bias = (parameter.double() for parameter in self.parameters(inputs))
        amplitude, x = A_log.exp()[:, None], self.raw(inputs).double() + dt_bias
        if self.form == "bounded":
            return replace(inputs, g=self.lower_bound * torch.sigmoid(amplitude * x))
        # threshold: torch replaces softplus by its argument above it, in float64 too.
        return replace(inputs, g=-amplitude * softplus(x, threshold=1e9))

    def refuses(self, problem: Problem) -> str | None:
        """Why the gates of a problem have no raw form; None if they have one."""
        g = problem.decays()
        if self.form == "bounded" and not bool(((g > self.lower_bound) & (g < 0)).all()):
            return (
                f"gates outside ({self.lower_bound:g}, 0): the bounded activation cannot express"
                " them"
            )
        if self.form == "softplus" and not bool((torch.isfinite(g) & (g < 0)).all()):
            return "gates of 0 or -inf: the softplus activation cannot express them"
        return None
