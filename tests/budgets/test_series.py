"""An inverse by a series has a larger error than substitution where betas are 2 and keys coherent:
it conforms where it is declared, and one in fewer bits does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.ceiling import Ceiling, Ceilings
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.solves import by_blocks, by_library, by_neumann
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import cotangents
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Chunk
from oracles.running_error import enclosed

PROBLEM = Problem(
    B=1,
    T=64,
    H=1,
    HV=1,
    K=16,
    V=16,
    dtype="fp32",
    gate="slow",
    key="coherent-0.9",
    beta="two",
    state="absent",
    value="normal",
    seed=9,
)
PLAIN = "chunk32-fp32"
SERIES = "chunk32-fp32[inverse:series;sub_block:8]"
Inverse = Callable[[Tensor], Tensor]


def series(A: Tensor) -> Tensor:
    return by_neumann(A, torch.matmul)


def short_series(A: Tensor) -> Tensor:
    """Without its last factor."""
    return torch.eye(A.shape[-1]) - A + (A @ A - A @ A @ A)


def run(contract: str, inverse: Inverse) -> Tensor:
    """o of a port whose blocks of 8 rows are inverted so."""

    def solve(c: Chunk) -> None:
        c.R = by_blocks(c.Akk, torch.matmul, size=8, own=inverse)

    declared: Contract = contract_from_name(contract)
    stages = replace(STAGES, solve=solve)
    given = PROBLEM.inputs()
    return run_form(declared, given, dtype=torch.float32, arithmetic=Arithmetic(), stages=stages)[0]


@functools.cache
def known(contract: str) -> Reference:
    inputs, declared, io = PROBLEM.inputs(), contract_from_name(contract), FORMATS["fp32"]
    return standard(inputs, declared, io, emulate(inputs, declared, io))


def ratio(contract: str, inverse: Inverse) -> float:
    allowed, truth = known(contract).budgets["o"], known(contract).exact("o")
    error = truth.error(run(contract, inverse).double())
    return max(allowed.ratios(allowed.measure(error, truth)).values())


def test_a_series_conforms_where_it_is_declared() -> None:
    assert ratio(SERIES, series) <= 1 < ratio(PLAIN, series)


def on_fp16_operands(a: Tensor, b: Tensor) -> Tensor:
    """As a matrix unit takes them."""
    fp16 = FORMATS["fp16"].round
    return fp16(a) @ fp16(b)


def narrow_series(A: Tensor) -> Tensor:
    return by_neumann(A, on_fp16_operands)


@pytest.mark.parametrize("seed", range(6))
def test_powers_of_16_bits_conform_among_operands_of_16_bits(seed: int) -> None:
    """Their error is twice that of powers in fp32, and hangs on few roundings of coherent keys."""
    problem = PROBLEM.replace(dtype="fp16", key="coherent-0.99", beta="near-one", seed=seed)
    inputs, io = problem.inputs(), FORMATS["fp16"]
    declared = contract_from_name("chunk64-fp16[inverse:series;sub_block:8]")
    noise = emulate(inputs, declared, io)
    reference = standard(inputs, declared, io, noise)

    def solve(c: Chunk) -> None:
        R = by_blocks(c.Akk, on_fp16_operands, size=8, own=narrow_series)
        c.R = c.store("R", R)

    store = Arithmetic(store=lambda name, x: declared.stored(name, x, io))
    stages = replace(STAGES, solve=solve)
    o, _ = run_form(declared, inputs, dtype=torch.float32, arithmetic=store, stages=stages)
    allowed, truth = reference.budgets["o"], reference.exact("o")
    error = truth.error(o.double())
    assert max(allowed.ratios(allowed.measure(error, truth)).values()) <= 1


def test_substitution_conforms_in_either() -> None:
    assert ratio(SERIES, by_library) <= 1 and ratio(PLAIN, by_library) <= 1


def test_a_short_series_or_one_of_fewer_bits_does_not() -> None:
    assert ratio(SERIES, short_series) > 10
    assert ratio(SERIES, lambda A: FORMATS["tf32"].round(series(A))) > 10


@pytest.mark.parametrize("contract", [SERIES, "chunk32-fp32[inverse:series]"])
def test_the_proven_bound_holds_for_a_series(contract: str) -> None:
    inputs, declared, io = PROBLEM.inputs(), contract_from_name(contract), FORMATS["fp32"]
    truth, bound = enclosed(inputs).named()["o"], Ceiling(Ceilings(inputs, declared, io), "o")
    for member, (o, _) in emulate(inputs, declared, io).rounded.items():
        assert bound.used(truth.error(o), truth, io).ratio <= 1, member


@pytest.mark.parametrize(
    ("contract", "dtype", "gates"),
    [
        (SERIES, "fp32", "channel"),
        ("chunk64-bf16-fp32solve[inverse:series]", "bf16", "channel"),
        ("chunk32-fp32[decay:scalar;inverse:series;sub_block:8]", "fp32", "head"),
    ],
)
def test_autograd_goes_through_a_series(contract: str, dtype: str, gates: str) -> None:
    problem = PROBLEM.replace(dtype=dtype, gates=gates)
    given, declared = cotangents(problem, "both"), contract_from_name(contract)
    made = emulate_gradients(problem.inputs(), given, declared, FORMATS[dtype], single=True)
    assert any(name.startswith("autograd") and "series" in name for name in made.rounded)


def test_a_recurrence_has_no_inverse() -> None:
    with pytest.raises(ContractError, match="inverse 'series' is a way of chunks"):
        contract_from_name("recurrent-fp32[inverse:series]")
