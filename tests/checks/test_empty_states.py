"""The state of an empty sequence, where states are returned in 16 bits: it is rounded, no error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.forward import forward
from kdaverify.problems import Problem
from oracles.arithmetic import Arithmetic
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

# Half of the sequences are empty; where keys are identical, the others' states have few right bits.
HALF_EMPTY = Problem(
    B=1,
    T=243,
    H=1,
    HV=1,
    K=32,
    V=16,
    lengths=(130, 113, 0, 0),
    dtype="bf16",
    gate="mixed",
    key="identical",
    beta="mixed",
    state="large",
    value="normal",
    seed=38017,
)


def _carried(name: str, x: Tensor) -> Tensor:
    return x.bfloat16().float() if name == "S" else x


def _kernel(empty: float) -> Adapter:
    """A recurrence that carries its state in bf16; that of an empty sequence times `empty`."""

    @kv.kernel(name="state in bf16", contract="recurrent-fp32-bf16carry", dtypes=("bf16",))
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
        call = Inputs(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
        )
        o, final = recurrence(call, dtype=torch.float32, arithmetic=Arithmetic(store=_carried))
        factors = torch.where(cu_seqlens.diff() == 0, empty, 1.0)[:, None, None, None]
        return o.to(q.dtype), (final * factors).to(torch.bfloat16)

    return kernel


@pytest.mark.parametrize(("empty", "rejected"), [(1.0, []), (1 + 2**-6, ["final_state"])])
def test_only_what_is_more_than_a_rounding_is_an_error(empty: float, rejected: list[str]) -> None:
    outcomes = forward(_kernel(empty), HALF_EMPTY)
    assert [x.output for x in outcomes if x.status.rejects] == rejected
