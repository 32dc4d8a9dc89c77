"""Kernels that round scale and beta, and subtract before beta multiplies, are held to what they
declare, and to no more.

The kernel here is written from the description of FlashKDA in its finding, without a line of the
emulation that it is held against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.emulate import scaled_queries
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.monte_carlo import MonteCarloArithmetic
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.presets import preset
from kdaverify.budgets.standard import standard
from kdaverify.budgets.stochastic_rounding import StochasticRounding
from kdaverify.problems import Problem
from oracles.inputs import Inputs

BF16: Final = FORMATS["bf16"]
DECLARED: Final = preset("flash_kda", "bf16")
SILENT: Final = replace(DECLARED, scale="free", tensors=())
# Half-way between two numbers of bf16, to 1/50 of their distance: rounded, it is 0.24 % too small.
SCALE: Final = 0.10034
RANDOM: Final = Problem(
    B=1,
    T=250,
    H=2,
    HV=2,
    K=32,
    V=32,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    scale=SCALE,
    seed=3,
)
COHERENT: Final = RANDOM.replace(
    T=160, gate="slow", key="coherent-0.9", beta="near-one", scale=None
)
Inverse = Callable[[Tensor], Tensor]


def bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


def fp16(x: Tensor) -> Tensor:
    return x.to(torch.float16).float()


def substituted(A: Tensor) -> Tensor:
    """Blocks of 8 in fp32, merged by products of bf16."""
    one, other = (
        torch.linalg.inv((A[..., b, b] + torch.eye(8)).double()).float()
        for b in (slice(8), slice(8, 16))
    )
    R = torch.zeros_like(A)
    R[..., :8, :8], R[..., 8:, 8:] = bf16(one), bf16(other)
    R[..., 8:, :8] = bf16(-bf16(bf16(other) @ bf16(A[..., 8:, :8])) @ bf16(one))
    return R


def doubled(A: Tensor) -> Tensor:
    """(I - A)(I + A^2)(I + A^4)(I + A^8) in fp16, as FlashKDA had it before."""
    product, power = fp16(torch.eye(16) - A), fp16(A)
    for _ in range(3):
        power = fp16(power @ power)
        product = fp16(product + fp16(product @ power))
    return bf16(product)


def kernel(
    x: Inputs, inverse: Inverse = substituted, *, scale: float = 1.0, beta: float = 1.0
) -> Outputs:
    """The call in chunks of 16, its state carried in fp32;
    `scale` and `beta` are what a fault multiplies them by.
    """
    q, k, v, g, b = (
        t[0].float().transpose(0, 1) for t in (x.q, x.k, x.v, x.g, x.beta[..., None] * beta)
    )
    state, rows = bf16(x.state[0].float()), list[Tensor]()
    factor = bf16(torch.tensor(x.factor)) * scale
    for first in range(0, x.T, 16):
        now = slice(first, first + 16)
        missing = 16 - g[:, now].shape[1]
        qc, kc, vc, gc, bc = (
            torch.nn.functional.pad(t[:, now], (0, 0, 0, missing)) for t in (q, k, v, g, b)
        )
        G = gc.cumsum(1)
        inward, outward, last = bf16(G.exp()), bf16((-G).exp()), G[:, -1:].exp()
        kd, ki, qd = bf16(kc * inward), bf16(kc * outward), bf16(bf16(qc * inward) * factor)
        R = inverse((kd @ ki.mT).tril(-1) * bc)
        h = bf16(state)
        u = bf16(R @ bf16(bf16(vc - bf16(kd @ h)) * bf16(bc)))
        rows.append(bf16(bf16(qd @ h) + bf16(bf16((qd @ ki.mT).tril()) @ u)))
        state = state * last.mT + bf16(ki * bf16(last)).mT @ u
    o = torch.cat(rows, dim=1)[:, : x.T].transpose(0, 1)
    return o[None].double(), bf16(state)[None].double()


def ratios(contract: Contract, x: Inputs, run: Outputs) -> dict[str, dict[str, float]]:
    """Every statistic of both outputs, as a multiple of its limit."""
    held, found = (
        standard(x, contract, BF16, emulate(x, contract, BF16)),
        dict[str, dict[str, float]](),
    )
    for name, output in zip(("o", "final_state"), run, strict=True):
        limits, exact = held.budgets[name], held.exact(name)
        found[name] = limits.ratios(limits.measure(exact.error(output), exact))
    return found


def worst(contract: Contract, x: Inputs, run: Outputs) -> float:
    return max(max(of.values()) for of in ratios(contract, x, run).values())


def read_as_bf16(problem: Problem) -> Inputs:
    x = problem.inputs()
    return replace(x, initial_state=bf16(x.state))


@pytest.mark.parametrize(
    "problem",
    [RANDOM, COHERENT, RANDOM.replace(T=1), RANDOM.replace(key="one-hot", state="large")],
    ids=Problem.describe,
)
def test_the_kernel_is_accepted_where_it_declares_what_it_rounds(problem: Problem) -> None:
    x = read_as_bf16(problem)
    assert worst(DECLARED, x, kernel(x)) <= 1


def test_its_scale_is_a_bias_where_it_declares_nothing() -> None:
    x = read_as_bf16(RANDOM)
    assert ratios(SILENT, x, kernel(x))["o"]["bias"] > 1


@pytest.mark.parametrize(("scale", "beta"), [(1 + 2**-6, 1.0), (1.0, 1 + 2**-5)])
def test_a_scale_or_beta_that_is_wrong_by_more_is_rejected(scale: float, beta: float) -> None:
    x = read_as_bf16(RANDOM)
    assert worst(DECLARED, x, kernel(x, scale=scale, beta=beta)) > 1


def test_an_inverse_by_doubling_in_fp16_is_rejected_on_coherent_keys_and_accepted_on_random() -> (
    None
):
    coherent, random = read_as_bf16(COHERENT), read_as_bf16(RANDOM)
    assert worst(DECLARED, coherent, kernel(coherent, doubled)) > 4
    assert worst(DECLARED, random, kernel(random, doubled)) <= 1


def test_the_contract_predicts_the_error_of_the_kernel() -> None:
    """The rms error of the declared arithmetic is that of the kernel,
    not only an upper limit of it.
    """
    x = read_as_bf16(RANDOM)
    (own,) = (
        member
        for member in ensemble(DECLARED, BF16)
        if member.name == "factored decays, difference first"
    )
    held = standard(x, DECLARED, BF16, emulate(x, DECLARED, BF16))
    for at, name in enumerate(("o", "final_state")):
        found, emulated = (
            held.exact(name).error(run[at]).norm() for run in (kernel(x), own.run(x))
        )
        assert 0.93 < float(found / emulated) < 1.07


def test_a_rounded_scale_is_the_same_in_every_kernel_and_in_no_sample() -> None:
    x = RANDOM.inputs()
    rounded = scaled_queries(x, DECLARED, BF16.round)
    assert rounded.factor == float(torch.tensor(SCALE).to(torch.bfloat16)) != SCALE
    assert (
        MonteCarloArithmetic(DECLARED, BF16)
        .computed(x, StochasticRounding(torch.Generator()))
        .factor
        == SCALE
    )


def test_beta_has_a_format_of_its_own_beside_factored_decays_alone() -> None:
    with pytest.raises(
        ContractError,
        match="tensor rounded_beta: only kernels of factored decays are emulated with it",
    ):
        contract_from_name("chunk64-bf16[rounded_beta:bf16]")


def test_where_factors_overflow_the_samples_take_differences() -> None:
    x = RANDOM.replace(gate="bound-20", T=40).inputs()
    assert all(
        bool(torch.isfinite(output).all())
        for run in MonteCarloArithmetic(DECLARED, BF16).run(x)
        for output in run
    )


def test_a_state_in_more_bits_than_declared_is_no_bias() -> None:
    """Equal gates round alike in every channel:
    what the carried state's own roundings would undo stays in o.
    """
    x = read_as_bf16(
        RANDOM.replace(
            T=81, key="alternating", gate="slow", value="zero", scale=None, K=128, V=128, seed=55843
        )
    )
    assert ratios(DECLARED, x, kernel(x))["o"]["bias"] < 0.9


def test_what_is_returned_is_in_the_format_of_the_carried_state_all_the_same() -> None:
    x = RANDOM.inputs()
    wide = [member for member in ensemble(DECLARED, BF16) if member.wide_state]
    assert len(wide) == 1
    _, final = wide[0].run(x, cuts=(100,))
    assert torch.equal(final, BF16.round(final))
