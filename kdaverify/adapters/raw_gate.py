"""Kernels that activate the gate themselves from x in a format of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kdaverify.problems import Problem
from oracles.gate_activation import LOWER_BOUND, A_log_of, Form, GateActivation, dt_bias_of
from oracles.inputs import Inputs


@dataclass(frozen=True)
class RawGate:
    """An activation, and the type in which the kernel takes x.

    Args:
        form: softplus or bounded.
        dtype: of x.
        lower_bound: of the bounded form.
    """

    form: Form
    dtype: torch.dtype = torch.float32
    lower_bound: float = LOWER_BOUND

    @cached_property
    def activation(self) -> GateActivation:
        """The map from x to g."""
        return GateActivation(self.form, self.lower_bound)

    def parameters(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """A_log [HV] and dt_bias [HV, K], fp32."""
        device = inputs.g.device
        return A_log_of(inputs.HV, device), dt_bias_of(inputs.HV, inputs.K, device)

    def raw(self, inputs: Inputs) -> Tensor:
        """x [B, T, HV, K] in `dtype`, whose activation is closest to g."""
        return self.activation.there(inputs.g.double()).to(self.dtype)

    def received(self, inputs: Inputs) -> Inputs:
        """The call as the kernel gets it: g in float64, exactly what the rounded x stands for."""
        return replace(inputs, g=self.activation.back(self.raw(inputs).double()))

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
