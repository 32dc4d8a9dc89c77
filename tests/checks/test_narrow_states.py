"""States that are returned in 16 bits: their cotangents arrive in 16 bits, which is no error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.gradients import gradients
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

CONTRACT = "chunk16-bf16-bf16carry"
# An empty sequence passes its cotangent on as dS_0.
PACK = Problem(
    B=1,
    T=47,
    H=1,
    HV=2,
    K=16,
    V=8,
    lengths=(17, 30, 0),
    dtype="bf16",
    gate="bound-20",
    key="coherent-0.3",
    beta="zero",
    state="asymmetric",
    value="powers-of-two",
    seed=42014,
)


def _kernel(strength: float) -> Adapter:
    @kv.kernel(
        name=f"state in bf16, d_initial_state times {strength}", contract=CONTRACT, dtypes=("bf16",)
    )
    def kernel(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor,
    ) -> tuple[Tensor, Tensor]:
        S = strength * initial_state + (1 - strength) * initial_state.detach()
        call = Inputs(q, k, v, g, beta, scale=scale, initial_state=S, cu_seqlens=cu_seqlens)
        o, final = recurrence(call, dtype=torch.float32)
        return o.to(q.dtype), final.to(torch.bfloat16)

    return kernel


@pytest.mark.parametrize(("strength", "rejected"), [(1.0, False), (1 + 2**-5, True)])
def test_cotangents_of_a_state_come_in_its_format(strength: float, rejected: bool) -> None:
    outcomes = gradients(_kernel(strength), PACK, of="final_state")
    found = {outcome.output for outcome in outcomes if outcome.status.rejects}
    assert ("d_initial_state" in found) is rejected
    assert rejected or not found
