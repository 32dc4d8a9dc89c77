"""The contract of kernels whose channels share a gate: what it says, what it refuses, and that it
is what FLA's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.calibration import in_tiles
from kdaverify.adapters import find
from kdaverify.adapters.isolation import housed
from kdaverify.budgets import scalar_decay
from kdaverify.budgets.backward import backward_members, emulate_gradients, member_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_file import parse_contract, to_toml
from kdaverify.budgets.contract_name import spelled
from kdaverify.budgets.declared import declared_contract
from kdaverify.budgets.description import describe
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import cotangents
from oracles.adjoint import adjoint
from oracles.arithmetic import NATIVE
from oracles.chunk import chunk
from oracles.chunk_backward import chunk_backward
from oracles.recurrence import recurrence

TESTED = Problem(
    B=1,
    T=130,
    H=1,
    HV=2,
    K=64,
    V=64,
    dtype="bf16",
    gates="head",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
Total = Callable[[Tensor], Tensor]
NARROW = TESTED.replace(T=70, K=8, V=6)


CHUNK = 64
LARGEST_SUM = {"log-sigmoid": 16.0, "mild": 16.0, "slow": 64.0}
"""By gate, the power of two above every partial sum of h * dh: measured, 8.4, 15.4 and 58.7."""


def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("gates", ["head", "none"])
@pytest.mark.parametrize("gate", ["log-sigmoid", "one-token-hard-reset", "bound-100"])
def test_in_exact_arithmetic_it_is_the_recurrence(gates: str, gate: str) -> None:
    tested = NARROW.replace(gates=gates, gate="zero" if gates == "none" else gate, dtype="fp32")
    x, loss = tested.inputs(), cotangents(tested, "both")
    early = replace(scalar_decay.FORWARD, output=scalar_decay.scaled_output)
    for stages in (scalar_decay.FORWARD, scalar_decay.RESIDUAL, early):
        for found, exact in zip(chunk(x, stages=stages), recurrence(x), strict=True):
            assert torch.allclose(found, exact, rtol=1e-10, atol=1e-10)
    found = chunk_backward(
        x,
        loss,
        stages=scalar_decay.FORWARD,
        backward=scalar_decay.BACKWARD,
        dtype=torch.float64,
        arithmetic=NATIVE,
    )
    for name, exact in adjoint(x, loss).named().items():
        assert torch.allclose(found.named()[name], exact, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_presets_say_the_form_and_read_back(dtype: str) -> None:
    contract = declared_contract("gdn64", dtype)
    assert contract == declared_contract(f"gdn64-{dtype}") and contract.decay == "scalar"
    assert contract_from_name(spelled(contract)) == contract
    assert parse_contract(to_toml(contract), "here").contract(dtype) == contract
    stored = {
        name: fmt for stage in describe(contract).forward for name, fmt in stage.stores.items()
    }
    assert (
        "qg" not in stored
        and "kg" not in stored
        and stored["v_decayed"] == stored["v_new"] == dtype
    )


def test_what_has_no_meaning_is_refused() -> None:
    for name in (
        "recurrent-fp32[decay:scalar]",
        "chunk64-bf16-fp32factors[decay:scalar]",
        "chunk64-bf16-anchored[decay:scalar]",
    ):
        with pytest.raises(ContractError, match="decay 'scalar'"):
            contract_from_name(name)
    with pytest.raises(ContractError, match="tensor 'qg' is none that the chunk form stores"):
        contract_from_name("chunk64-bf16[decay:scalar;qg:fp32]")


def precision(dtype: str, depth: float) -> float:
    """Roundings of the format that a reference kernel may be off by, as rms.

    In 16 bits sums are exact beside what is stored: one rounding of o, and those of its factors. In
    fp32 the sums themselves round: sqrt(64) for the 64 terms of a chunk, and a decay is the
    exponential of a difference of sums of gates, so its error grows with their depth. Measured at
    depths 0.06, 3, 26 and 55: 6.0, 4.6, 7.0 and 13.2.
    """
    return 2.0 if dtype != "fp32" else CHUNK**0.5 + depth / 8


@pytest.mark.parametrize("gate", ["slow", "mild", "log-sigmoid"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_reference_kernel_and_sample_is_as_precise_as_its_format(
    dtype: str, gate: str
) -> None:
    tested, contract, io = (
        NARROW.replace(dtype=dtype, gate=gate),
        declared_contract("gdn64", dtype),
        FORMATS[dtype],
    )
    x, loss = tested.inputs(), cotangents(tested, "both")
    made, back = emulate(x, contract, io), emulate_gradients(x, loss, contract, io)
    exact, dg = recurrence(x), adjoint(x, loss).dg
    depth = max(float(-part.cumsum(1).min()) for part in x.g.split(CHUNK, 1))
    least = precision(dtype, depth) * io.unit
    # A sample rounds every sum at random, a reference kernel to nearest: twice its error. dg is a
    # difference of two sums over K that cancel, up to 4.7 times its size in 48 samples of six such
    # problems.
    for runs, backs, more in (
        (made.rounded.values(), back.rounded.values(), 1),
        (made.drawn, back.drawn, 2),
    ):
        assert all(
            off(y, z) < more * least for run in runs for y, z in zip(run, exact, strict=True)
        )
        assert all(
            run.dg.shape == x.g.shape and off(run.dg, dg) < 6 * more * least for run in backs
        )
    assert {"library order", "residual form"} <= {*made.rounded}


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("gate", ["log-sigmoid", "slow", "mild"])
def test_it_errs_as_flash_linear_attention_does(gate: str, dtype: str) -> None:
    """Within 5 % in rms: outputs and gradients of chunk_gated_delta_rule under the interpreter.

    The error of dg is that of one sum of h * dh in 16 bits for each chunk and head, six here. In
    bf16 the kernel's h and dh are those of the emulation, and so is every rounding. In fp16 a few
    of them are not, since fp32 sums in another order move 8 times as many over a boundary: a
    partial sum may then round to its other neighbour, and dg is off by that one rounding.
    """
    tested, io = TESTED.replace(gate=gate, dtype=dtype), FORMATS[dtype]
    ratios, found, expected = compared("fla-gdn", tested, in_tiles(io, TESTED.K, side=32))
    if dtype == "fp16":
        ratios.pop("dg")
        one = 2 * io.unit * LARGEST_SUM[gate]
        assert float((found.double() - expected.double()).abs().max()) < one
    assert all(0.95 < ratio < 1.05 for ratio in ratios.values()), ratios


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_it_errs_as_the_ascend_kernels_do(dtype: str) -> None:
    """Within 5 % in rms in the gradients of the tokens, 10 % in what passes through the states: the
    kernels read the state in fp32, and round do where the emulation rounds q. dg is one sum a chunk
    and head, in another order.

    Stored once, as by the kernels for CUDA, dbeta would have 0.66 of this error in bf16 and a
    quarter in fp16.
    """
    ratios, _, _ = compared("triton_npu-gdn", TESTED.replace(dtype=dtype), None)
    ratios.pop("dg")
    tokens = [ratios.pop(name) for name in ("dq", "dk", "dv", "dbeta")]
    assert all(0.95 < ratio < 1.05 for ratio in tokens), tokens
    assert all(0.9 < ratio < 1.1 for ratio in ratios.values()), ratios


def compared(
    name: str, tested: Problem, total: Total | None
) -> tuple[dict[str, float], Tensor, Tensor]:
    """By output and gradient, the rms error of an implementation as a multiple of that of the first
    emulated kernel of its contract; and dg of both.
    """
    adapter = find(name)
    if reason := adapter.missing():
        pytest.skip(reason)
    io, contract = FORMATS[tested.dtype], adapter.contract(tested.dtype)
    x, loss = tested.inputs(), cotangents(tested, "both")
    house = housed(adapter, name, limits=Limits())
    try:
        made, found = house.forward(x.copied()), house.gradients(x.copied(), loss).named()
    finally:
        house.end()
    exact, emulated = recurrence(x), ensemble(contract, io)[0].run(x)
    plain = backward_members(contract, io)[0]
    plain = plain if total is None else replace(plain, total=total)
    expected, truth = member_gradients(plain, x, loss).named(), adjoint(x, loss).named()
    triples = {
        "o": (made.o, emulated[0], exact[0]),
        "final_state": (made.final_state, emulated[1], exact[1]),
        **{output: (found[output], expected[output], truth[output]) for output in truth},
    }
    ratios = {
        output: off(kernel, z) / off(emulation, z)
        for output, (kernel, emulation, z) in triples.items()
    }
    return ratios, found["dg"], expected["dg"]
