"""Elements that real kernels returned on an NVIDIA H200, to the bit: what the family emulates is what hardware does.

Each is the worst element of a problem of the suites, taken from the kernel's verdict: cuDNN's plan kda_hopper_cuda (frontend 1.32.0)
and FLA's chunk_kda (fla-core 0.6.0, Triton 3.6.0).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.family import family
from kdaverify.budgets.formats import FORMATS
from kdaverify.problems import Problem

CUDNN = "chunk16-bf16-fp32factors"
FLA = "chunk64-fp16-tf32solve"
COLUMNS, TRUNCATED = "factored decays, beta on the columns", "matrix units that truncate"


class Measured(NamedTuple):
    """One element of one output (0: o, 1: S_T) of one problem."""

    contract: str
    member: str
    problem: Problem
    output: int
    place: tuple[int, ...]
    got: float


def one_token(gate: str, *, beta: str = "one", value: str = "normal") -> Problem:
    """The simplest problem that the suites draw at the widths of cuDNN."""
    return Problem(B=1, T=1, H=1, HV=1, K=128, V=128, dtype="bf16", gate=gate, key="random", beta=beta, state="absent", value=value, seed=0)


IDENTICAL = Problem(
    B=1, T=65, H=2, HV=2, K=32, V=32, dtype="fp16", gate="slow", key="identical", beta="one", state="random", value="normal", seed=0
)
ELEMENTS = (
    Measured(CUDNN, COLUMNS, one_token("log-sigmoid"), 1, (0, 0, 125, 72), 0.250900269),
    Measured(CUDNN, COLUMNS, one_token("mild"), 1, (0, 0, 62, 72), 0.197467804),
    Measured(CUDNN, COLUMNS, one_token("strong-then-weak"), 1, (0, 0, 74, 72), -0.483215332),
    Measured(CUDNN, COLUMNS, one_token("half-zero", beta="near-one", value="powers-of-two"), 1, (0, 0, 117, 4), -4.0),
    Measured(FLA, TRUNCATED, IDENTICAL, 0, (0, 51, 0, 11), 0.0468139648),
)


def emulated(contract: str, member: str, problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    (found,) = (kernel for kernel in family(contract_from_name(contract), FORMATS[problem.dtype]) if kernel.name == member)
    return found.run(problem.inputs())


@pytest.mark.parametrize("measured", ELEMENTS, ids=lambda m: f"{m.contract}-{m.problem.gate}")
def test_the_member_that_a_kernel_is_gives_its_bits(measured: Measured) -> None:
    found = float(emulated(measured.contract, measured.member, measured.problem)[measured.output][measured.place])
    assert found == pytest.approx(measured.got, rel=1e-8, abs=0)


@pytest.mark.parametrize("measured", ELEMENTS, ids=lambda m: f"{m.contract}-{m.problem.gate}")
def test_a_kernel_of_another_way_does_not(measured: Measured) -> None:
    found = float(emulated(measured.contract, "library order", measured.problem)[measured.output][measured.place])
    assert found != pytest.approx(measured.got, rel=1e-3, abs=0)
