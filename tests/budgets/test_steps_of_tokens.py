"""Chunks of a delta product are of steps: their states are stored after fewer tokens. A right port
of two steps was rejected at 5 times its tolerance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem
from oracles.tensors import OUTPUTS

BF16: Final = FORMATS["bf16"]
PROBLEM: Final = Problem(
    B=1,
    T=243,
    H=1,
    HV=1,
    K=16,
    V=16,
    dtype="bf16",
    gates="head",
    gate="slow",
    key="random",
    beta="zero",
    state="asymmetric",
    value="normal",
    seed=48552,
)
DECLARED: Final = preset("gdn64", "bf16")


WRITING: Final = PROBLEM.replace(gate="log-sigmoid", beta="uniform")
_REFERENCES: Final = dict[tuple[str, int], Reference]()


def _standard(problem: Problem, steps: int) -> Reference:
    inputs, contract = problem.inputs(), DECLARED.of_steps(steps)
    key = problem.model_dump_json(), steps
    if key not in _REFERENCES:
        found = standard(inputs, contract, BF16, emulate(inputs, contract, BF16))
        _REFERENCES[key] = found
    return _REFERENCES[key]


def _worst(kernel: Emulator, steps: int, problem: Problem = PROBLEM) -> float:
    """The worst ratio of o and S_T of a kernel."""
    reference, run = _standard(problem, steps), kernel.run(problem.inputs(), ())
    ratios = list[float]()
    for name, found in zip(OUTPUTS, run, strict=False):
        allowed, exact = reference.budgets[name], reference.exact(name)
        measured = allowed.measure(exact.error(found.double()), exact)
        ratios.append(max(allowed.ratios(measured).values()))
    return max(ratios)


def _chunked(size: int, contract: Contract = DECLARED) -> Emulator:
    """A kernel of that contract with chunks of other sizes."""
    return ensemble(replace(contract, chunk_size=size), BF16)[0]


@pytest.mark.parametrize(("size", "steps"), [(64, 1), (64, 2), (32, 2)])
def test_chunks_of_steps_conform(size: int, steps: int) -> None:
    assert _worst(_chunked(size), steps) <= 1


def test_smaller_chunks_are_of_delta_products_alone() -> None:
    assert _worst(_chunked(32), 1) > 4
    assert [one.name for one in ensemble(DECLARED.of_steps(1), BF16)] == [
        one.name for one in ensemble(DECLARED, BF16)
    ]


def test_weaker_kernels_are_over_tolerance_in_chunks_of_steps() -> None:
    """A state in 16 bits, shorter chunks, and storage that truncates."""
    assert _worst(_chunked(32), 2, WRITING) <= 1
    assert _worst(_chunked(32, replace(DECLARED, carry=BF16)), 2) > 100
    assert _worst(_chunked(8), 2) > 4
    cut = replace(DECLARED, storage_rounding="truncate")
    assert _worst(_chunked(32, cut), 2, WRITING) > 4


def test_steps_are_part_of_a_name_and_of_chunks_alone() -> None:
    contract = contract_from_name("chunk64-bf16/recurrent-fp32").of_steps(3)
    assert contract.name == "chunk64-bf16[steps:3]/recurrent-fp32"
    assert contract_from_name(contract.name) == contract
    with pytest.raises(ContractError, match="steps"):
        contract_from_name("recurrent-fp32[steps:2]")
