"""Designs between two kinds of cores: their algebra is the definition's,
their intermediate buffers are those of the designs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.designs import DESIGNS, Design
from kdaverify.budgets.designs.ascend import BIASED
from kdaverify.budgets.designs.catalogue import (
    ASCEND_V1,
    ASCEND_V2,
    ASCEND_V3,
    TRITON_NPU_GDN,
    TRITON_NPU_STATE,
)
from kdaverify.budgets.designs.design import KIB
from kdaverify.budgets.designs.state_kernel import ONLY_GATED
from kdaverify.budgets.formats import FORMATS, MAILBOX_FORMATS
from kdaverify.problems import Problem, cotangents
from oracles.adjoint import adjoint
from oracles.arithmetic import Arithmetic
from oracles.chunk import chunk
from oracles.chunk_backward import chunk_backward
from oracles.recurrence import recurrence

BF16 = FORMATS["bf16"]
STATE_KERNELS = (TRITON_NPU_STATE, TRITON_NPU_GDN)
RIGHT = (ASCEND_V2, ASCEND_V3, *STATE_KERNELS)
PLAIN: dict[str, Any] = {
    "B": 1,
    "T": 70,
    "H": 1,
    "HV": 2,
    "K": 8,
    "V": 12,
    "dtype": "fp64",
    "seed": 3,
    "gate": "log-sigmoid",
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}
PROBLEMS = (
    {},
    {"gate": "mild"},
    {"gate": "zero", "beta": "mixed"},
    {"lengths": (5, 0, 65)},
    {"key": "coherent-0.9", "gate": "slow"},
)


def problem(**changes: Any) -> Problem:
    return Problem(**{**PLAIN, **changes})


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("design", RIGHT, ids=lambda design: design.name)
@pytest.mark.parametrize("changes", PROBLEMS, ids=str)
def test_without_roundings_a_design_is_the_definition_there_and_back(
    design: Design, changes: dict[str, Any]
) -> None:
    tested = problem(**changes, gates=design.gates)
    x, given = tested.inputs(), cotangents(tested, "both")
    for found, wanted in zip(chunk(x, stages=design.stages), recurrence(x), strict=True):
        assert apart(found, wanted) < 1e-12
    back = chunk_backward(x, given, stages=design.stages, backward=design.backward).named()
    for name, wanted in adjoint(x, given).named().items():
        assert apart(back[name], wanted) < 1e-11


def test_decay_along_the_value_axis_is_not_the_definition() -> None:
    x = problem(K=12, gate="spread").inputs()
    (o, final), (wanted, wanted_final) = chunk(x, stages=ASCEND_V1.stages), recurrence(x)
    assert apart(final, wanted_final) > 0.1
    assert apart(o, wanted) > 0.1
    assert apart(o[:, :64], wanted[:, :64]) < 1e-12, (
        "the first chunk reads the state before any decay of it"
    )


@pytest.mark.parametrize("design", DESIGNS.values(), ids=lambda design: design.name)
def test_every_mailbox_is_stored_once_a_chunk(design: Design) -> None:
    tested = problem(K=12, gates=design.gates)
    seen = Counter[str]()

    def store(name: str, tensor: Tensor) -> Tensor:
        seen[name] += 1
        return tensor

    x, chunks = tested.inputs(), 2
    chunk(x, arithmetic=Arithmetic(store=store), stages=design.stages)
    assert {mailbox.name: seen[mailbox.name] for mailbox in design.mailboxes} == dict.fromkeys(
        (m.name for m in design.mailboxes), chunks
    )
    forward = seen.copy()
    back = Arithmetic(store=store)
    chunk_backward(
        x,
        cotangents(tested, "both"),
        arithmetic=back,
        stages=design.stages,
        backward=design.backward,
    )
    assert all(
        seen[mailbox.name] - 2 * forward[mailbox.name] == chunks
        for mailbox in design.backward_mailboxes
    )
    assert set(seen) <= {*design.contract(BF16).named_tensors}


@pytest.mark.parametrize(
    ("design", "transfers", "kib", "us"), [(ASCEND_V3, 6, 224, 8.2), (ASCEND_V2, 11, 232, 13.3)]
)
def test_transfers_and_bytes_are_those_of_the_design(
    design: Design, transfers: int, kib: int, us: float
) -> None:
    formats = design.formats(BF16)
    assert design.transfers == transfers
    assert design.bytes_moved(formats) == kib * KIB
    # The design counts a KB as 1000 bytes.
    assert transfers + kib / 100 == pytest.approx(us, abs=0.05)
    assert design.microseconds(formats) == pytest.approx(us, abs=0.1)


@pytest.mark.parametrize("design", STATE_KERNELS, ids=lambda design: design.name)
def test_the_state_kernel_takes_144_kib_of_mailboxes(design: Design) -> None:
    assert design.buffers * design.bytes_moved(design.formats(BF16)) == 144 * KIB


@pytest.mark.parametrize("gate", ["bound-5", "one-token-hard-reset"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_deep_gates_overflow_factored_decays_and_no_others(dtype: str, gate: str) -> None:
    x = problem(dtype=dtype, gate=gate).inputs()
    assert not torch.isfinite(ASCEND_V3.emulator(FORMATS[dtype]).run(x)[0]).all()
    for design in STATE_KERNELS:
        x = problem(dtype=dtype, gate=gate, gates=design.gates).inputs()
        made, exact = design.emulator(FORMATS[dtype]).run(x), recurrence(x.to(torch.float64))
        assert all(apart(found, wanted) < 0.02 for found, wanted in zip(made, exact, strict=True))


def test_a_gate_can_be_divided_out_of_v_new_only_where_it_is_mild() -> None:
    mild, deep = (problem(gate=gate).inputs() for gate in ("mild", "bound-20"))
    assert apart(chunk(mild, stages=ONLY_GATED)[0], recurrence(mild)[0]) < 1e-12
    assert not torch.isfinite(chunk(deep, stages=ONLY_GATED)[0]).all()
    assert torch.isfinite(chunk(deep, stages=TRITON_NPU_STATE.stages)[0]).all()


def test_an_eps_in_the_logarithm_biases_every_step() -> None:
    x = problem(gate="slow", beta="sparse", T=640, state="absent").inputs()
    error = chunk(x, stages=BIASED)[1] / chunk(x, stages=ASCEND_V3.stages)[1] - 1
    torch.testing.assert_close(error, torch.full_like(error, 639e-6), rtol=0.01, atol=0.0)


def _state_with(name: str, fmt: str) -> Tensor:
    formats = {**ASCEND_V3.formats(FORMATS["fp32"]), name: MAILBOX_FORMATS[fmt]}
    return ASCEND_V3.emulator(BF16, formats).run(problem(dtype="bf16").inputs())[1]


def test_a_mailbox_in_fewer_bits_costs_more() -> None:
    _, wanted = recurrence(problem(dtype="bf16").inputs().to(torch.float64))
    errors = [
        apart(_state_with("S_delta", fmt), wanted)
        for fmt in ("fp32", "fp16", "bf16", "e4m3-tile", "e5m2-tile")
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.1 * errors[-1]
    assert not torch.isfinite(_state_with("K_div", "fp16")).all()


@pytest.mark.parametrize(
    "fmt", [fmt for fmt in MAILBOX_FORMATS.values() if fmt.tiled], ids=lambda fmt: fmt.name
)
def test_a_scale_for_every_matrix_takes_it_to_the_top_of_the_range(fmt: Any) -> None:
    x = torch.randn(3, 64, 16, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 2.0**-40, 0.0]
    ).view(3, 1, 1)
    rounded = fmt.round(x)
    large = x.abs() > 2.0**-3 * x.abs().amax((-2, -1), keepdim=True)
    assert ((rounded - x).abs() <= fmt.unit * x.abs())[large].all()
    assert torch.equal(rounded[2], x[2])
    assert torch.equal(fmt.round(x * 2.0**30), rounded * 2.0**30)
