"""DeltaNet by maps of chunks, differentiated by autograd: d_initial_state is the transposed map
times the gradient of the state. In fp32 it conforms, in fewer bits it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs

PROBLEM: Final = Problem(
    B=1,
    T=9,
    H=1,
    HV=1,
    K=136,
    V=256,
    dtype="fp32",
    gates="none",
    gate="zero",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=0,
)
NAME: Final = "chunk32-fp32[decay:scalar;transition:formed]"
Rounding = Callable[[Tensor], Tensor]


@torch.inference_mode(mode=False)
def _d_initial_state(x: Inputs, loss: Cotangents, keep: Rounding) -> Tensor:
    """By autograd, of one chunk: S -> M S + C with M = I - k^T (I + A)^-1 beta k, formed first."""
    q, k, v = (tokens[0, :, 0].clone() for tokens in (x.q, x.k, x.v))
    beta, state = x.beta[0, :, :1].clone(), x.state[0, 0].clone().requires_grad_()
    A = torch.eye(len(k)) + (beta * (k @ k.mT)).tril(-1)
    w, u = (
        torch.linalg.solve_triangular(A, beta * rows, upper=False, unitriangular=True)
        for rows in (k, v)
    )
    do, dS = (one.float().clone().view(-1, x.v.shape[-1]) for one in loss.of(x, torch.float32))
    with torch.enable_grad():
        o = x.factor * (q @ state + (q @ k.mT).tril() @ (u - w @ state))
        final = keep(torch.eye(len(state)) - k.mT @ w) @ state + k.mT @ u
    (found,) = torch.autograd.grad((o, final), state, (do, keep(dS)))
    return found.view_as(x.state)


def _ratio(name: str, keep: Rounding) -> float:
    x, loss = PROBLEM.inputs(), cotangents(PROBLEM, "both")
    contract, io = contract_from_name(name), FORMATS["fp32"]
    reference = gradient_standard(x, loss, contract, io, emulate_gradients(x, loss, contract, io))
    budget, exact = reference.budgets["d_initial_state"], reference.exact("d_initial_state")
    found = _d_initial_state(x, loss, keep)
    return max(budget.ratios(budget.measure(exact.error(found.double()), exact)).values())


def _to_tf32(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & -8192).view(torch.float32)


def test_a_transposed_map_conforms_where_maps_are_declared() -> None:
    assert _ratio(NAME, Tensor.float) <= 1


WRONG: Final[dict[str, Rounding]] = {
    "tf32": _to_tf32,
    "bf16": lambda x: x.bfloat16().float(),
    "a millionth too large": lambda x: x * (1 + 1e-6),
}


@pytest.mark.parametrize("keep", WRONG.values(), ids=WRONG)
def test_one_of_fewer_bits_does_not(keep: Rounding) -> None:
    assert _ratio(NAME, keep) > 1
