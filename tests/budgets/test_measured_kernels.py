"""Elements that real kernels returned on an NVIDIA H200, to the bit: what the ensemble emulates is
what hardware does.

Each is the worst element of a problem of the suites, taken from the kernel's verdict: cuDNN's plan
kda_hopper_cuda (frontend 1.32.0) and FLA's chunk_kda (fla-core 0.6.0, Triton 3.6.0). In what order
a library sums is its processor's affair: here products are summed exactly and rounded once, on
every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from torch import Tensor

from kdaverify.adapters.raw_gate import RawGate
from kdaverify.budgets import sums
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.solves import Dot
from kdaverify.problems import Problem

CUDNN = "chunk16-bf16-fp32factors"
FLA, FLA_SAFE = "chunk64-fp16-tf32solve", "chunk64-fp16-anchored-tf32solve"
COLUMNS, TRUNCATED = "factored decays, beta on the columns", "matrix units that truncate"
FLUSHED = f"{COLUMNS}, subnormals flushed"


class Measured(NamedTuple):
    """One element of one output (0: o, 1: S_T) of one problem."""

    contract: str
    member: str
    problem: Problem
    output: int
    place: tuple[int, ...]
    got: float
    activated: RawGate | None = None  # by the kernel itself


def one_token(gate: str, *, beta: str = "one", value: str = "normal") -> Problem:
    """The simplest problem that the suites draw at the widths of cuDNN."""
    return Problem(
        B=1,
        T=1,
        H=1,
        HV=1,
        K=128,
        V=128,
        dtype="bf16",
        gate=gate,
        key="random",
        beta=beta,
        state="absent",
        value=value,
        seed=0,
    )


IDENTICAL = Problem(
    B=1,
    T=65,
    H=2,
    HV=2,
    K=32,
    V=32,
    dtype="fp16",
    gate="slow",
    key="identical",
    beta="one",
    state="random",
    value="normal",
    seed=0,
)
# The deepest gates of the released models, over two chunks: the last row's factor leaves the normal
# range of bf16.
DEEP = Problem(
    B=2,
    T=32,
    H=1,
    HV=1,
    K=128,
    V=128,
    dtype="bf16",
    gate="bound-5",
    key="random",
    beta="one",
    state="absent",
    value="normal",
    seed=2,
)
ALTERNATING = Problem(
    B=1,
    T=326,
    H=2,
    HV=4,
    K=64,
    V=64,
    lengths=(245, 2, 47, 31),
    dtype="fp16",
    gate="log-sigmoid",
    key="alternating",
    beta="uniform",
    state="absent",
    value="large",
    seed=51611,
)
ELEMENTS = (
    Measured(CUDNN, COLUMNS, one_token("log-sigmoid"), 1, (0, 0, 125, 72), 0.250900269),
    Measured(CUDNN, COLUMNS, one_token("mild"), 1, (0, 0, 62, 72), 0.197467804),
    Measured(CUDNN, COLUMNS, one_token("strong-then-weak"), 1, (0, 0, 74, 72), -0.483215332),
    Measured(
        CUDNN,
        COLUMNS,
        one_token("half-zero", beta="near-one", value="powers-of-two"),
        1,
        (0, 0, 117, 4),
        -4.0,
    ),
    Measured(CUDNN, FLUSHED, DEEP, 0, (1, 31, 0, 20), 0.0100708008),
    Measured(FLA, TRUNCATED, IDENTICAL, 0, (0, 51, 0, 11), 0.0468139648),
    Measured(FLA_SAFE, TRUNCATED, ALTERNATING, 0, (0, 184, 1, 16), 0.327148438, RawGate("bounded")),
)


def rounded_once(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(a.dtype)


@pytest.fixture(autouse=True)
def _no_order_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(contract: Contract) -> Dot:
        del contract
        return rounded_once

    monkeypatch.setattr(sums, "library", library)


def emulated(measured: Measured, member: str) -> float:
    """The measured element as a reference kernel makes it."""
    problem = measured.problem
    (found,) = (
        kernel
        for kernel in ensemble(contract_from_name(measured.contract), FORMATS[problem.dtype])
        if kernel.name == member
    )
    inputs = (
        problem.inputs()
        if measured.activated is None
        else measured.activated.received(problem.inputs())
    )
    return float(found.run(inputs)[measured.output][measured.place])


@pytest.mark.parametrize("measured", ELEMENTS, ids=lambda m: f"{m.contract}-{m.problem.gate}")
def test_the_member_that_a_kernel_is_gives_its_bits(measured: Measured) -> None:
    assert emulated(measured, measured.member) == pytest.approx(measured.got, rel=1e-8, abs=0)


@pytest.mark.parametrize("measured", ELEMENTS, ids=lambda m: f"{m.contract}-{m.problem.gate}")
def test_a_kernel_of_another_way_does_not(measured: Measured) -> None:
    assert emulated(measured, "library order") != pytest.approx(measured.got, rel=1e-3, abs=0)
