"""What chunks in fp32 leave open: decays that are products of factors, hard resets that are
clamped, and the recurrence in place of chunks. Each conforms, and with fewer digits does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.ensemble import by_tokens, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import standard
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import cotangents
from oracles.inputs import Inputs

SIZE: Final = 32
FP32: Final = FORMATS["fp32"]
SLOW: Final = Problem(
    B=1, T=70, H=1, HV=1, K=8, V=4, dtype="fp32", gate="slow", key="random", beta="small",
    state="random", value="normal", seed=0,
)  # fmt: skip
RESETS: Final = SLOW.replace(gate="hard-reset", beta="uniform", K=16, V=8)
STEEP: Final = SLOW.replace(gate="log-sigmoid", beta="uniform", K=16, V=8)
Decays = Callable[[Tensor], Tensor]
Kernel = Callable[[Inputs], Tensor]


def chunks(x: Inputs, decays: Decays, reset: float = -110.0) -> Tensor:
    """o of a port with chunks of 32 tokens; `decays`: [C, C, K] of the sums of gates [C, K]."""
    q, k, v, g, beta = (y[0, :, 0].float() for y in (x.q, x.k, x.v, x.g, x.beta))
    state, found = x.state[0, 0].float(), []
    for rows in torch.arange(x.T).split(SIZE):
        G = g[rows].clamp(min=reset).cumsum(0)
        below = torch.ones(len(rows), len(rows)).tril()[..., None]
        D = (decays(G) * below).nan_to_num()
        A = (torch.einsum("id,jd,ijd->ij", k[rows], k[rows], D) * beta[rows, None]).tril(-1)
        e = G.exp()
        right = beta[rows, None] * (v[rows] - (k[rows] * e) @ state)
        u = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
        scores = torch.einsum("id,jd,ijd->ij", q[rows], k[rows], D)
        found.append(x.factor * ((q[rows] * e) @ state + scores @ u))
        state = e[-1, :, None] * state + (k[rows] * D[-1]).mT @ u
    return torch.cat(found)[None, :, None]


def differences(G: Tensor) -> Tensor:
    return (G[:, None] - G).exp()


def factors(G: Tensor) -> Tensor:
    return G.exp()[:, None] * (-G).exp()


def tokens(x: Inputs, keep: Decays = torch.clone) -> Tensor:
    """o of the recurrence in fp32, whose state goes through `keep` after every token."""
    q, k, v, g, beta = (y[0, :, 0].float() for y in (x.q, x.k, x.v, x.g, x.beta))
    state, found = x.state[0, 0].float(), []
    for t in range(x.T):
        state = g[t].exp()[:, None] * state
        state = keep(state + torch.outer(k[t], beta[t] * (v[t] - k[t] @ state)))
        found.append(x.factor * (q[t] @ state))
    return torch.stack(found)[None, :, None]


def ratio(problem: Problem, contract: str, kernel: Kernel) -> float:
    """The largest multiple of the tolerance of o."""
    x, declared = problem.inputs(), contract_from_name(contract)
    known = standard(x, declared, FP32, emulate(x, declared, FP32))
    allowed, exact = known.budgets["o"], known.exact("o")
    error = exact.error(kernel(x).double())
    return max(allowed.ratios(allowed.measure(error, exact)).values())


SEEDS: Final = pytest.mark.parametrize("seed", range(8))


@SEEDS
def test_clamped_resets_conform(seed: int) -> None:
    problem = RESETS.replace(seed=seed)
    assert ratio(problem, "chunk32-fp32", lambda x: chunks(x, differences)) <= 1


def test_a_clamp_so_low_that_it_costs_digits_does_not() -> None:
    assert ratio(RESETS, "chunk32-fp32", lambda x: chunks(x, differences, reset=-1e4)) > 10


def test_gradients_may_come_from_clamped_resets() -> None:
    given, declared = cotangents(RESETS, "both"), contract_from_name("chunk32-fp32")
    made = emulate_gradients(RESETS.inputs(), given, declared, FP32)
    assert any("resets clamped" in name for name in made.rounded)


@SEEDS
def test_factors_in_fp32_conform_where_they_are_declared(seed: int) -> None:
    problem = STEEP.replace(seed=seed)
    assert ratio(problem, "chunk32-fp32-fp32factors", lambda x: chunks(x, factors)) <= 1


def test_factors_of_fewer_bits_do_not() -> None:
    def narrow(G: Tensor) -> Tensor:
        tf32 = FORMATS["tf32"]
        return tf32.round(G.exp())[:, None] * tf32.round((-G).exp())

    assert ratio(STEEP, "chunk32-fp32-fp32factors", lambda x: chunks(x, narrow)) > 10


@pytest.mark.parametrize("name", ["chunk32-fp32-bf16factors", "chunk64-fp64-fp32factors"])
def test_wide_operands_have_factors_in_fp32(name: str) -> None:
    with pytest.raises(ContractError, match="of fp32 and tf32 in fp32"):
        contract_from_name(name)


@SEEDS
@pytest.mark.parametrize("contract", ["chunk32-fp32", "chunk64-fp32[decay:scalar;sub_block:8]"])
def test_the_recurrence_conforms_in_place_of_chunks(contract: str, seed: int) -> None:
    assert ratio(SLOW.replace(seed=seed), contract, tokens) <= 1


def test_one_with_a_narrower_state_does_not() -> None:
    assert ratio(SLOW, "chunk32-fp32", lambda x: tokens(x, FORMATS["tf32"].round)) > 10


@pytest.mark.parametrize("name", ["chunk64-bf16", "chunk32-fp32[h:bf16]", "recurrent-fp32"])
def test_contracts_with_16_bits_have_no_recurrence_among_chunks(name: str) -> None:
    assert by_tokens(contract_from_name(name), FP32) == ()


def test_a_resumed_run_whose_factors_overflow_counts_for_nothing() -> None:
    problem = SLOW.replace(gate="bound-20", T=96)
    made = emulate(
        problem.inputs(), contract_from_name("chunk32-fp32-fp32factors"), FP32, cuts=(32, 64)
    )
    assert made.rounded and not any("factored" in name for name in made.rounded)
