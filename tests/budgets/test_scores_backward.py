"""The backward of the scores as kernels take it:
equal in exact arithmetic, apart where each rounds otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kdaverify.budgets.backward import backward_members, member_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset
from kdaverify.budgets.score_blocks import ANCHORED, VECTOR, Blocks
from kdaverify.budgets.scores_backward import RIGHT_FIRST, scores_backward
from kdaverify.budgets.sums import three_products
from kdaverify.problems import Problem, cotangents
from oracles.chunk import COMPENSATED
from oracles.chunk_backward import BACKWARD, BackwardStages, chunk_backward
from oracles.gradients import Gradients

WAYS = {"vector": VECTOR, **ANCHORED}
SIZES: dict[str, Any] = {"B": 1, "T": 70, "H": 1, "HV": 1, "K": 32, "V": 16, "dtype": "fp32"}
COHERENT = Problem(
    **SIZES,
    gate="mild",
    key="coherent-0.9",
    beta="near-one",
    state="random",
    value="normal",
    seed=3,
)


def gradients(table: BackwardStages) -> Gradients[torch.Tensor]:
    return chunk_backward(COHERENT.inputs(), cotangents(COHERENT, "both"), backward=table)


@pytest.mark.parametrize("blocks", WAYS.values(), ids=WAYS.keys())
def test_every_way_is_the_same_in_float64(blocks: Blocks) -> None:
    exact = gradients(BACKWARD).named()
    # Three bf16 products are as good as bf16 twice over, whatever they are computed in.
    room = 2.0**-14 if blocks.inside == "three products" else 1e-12
    for name, found in (
        gradients(scores_backward(torch.matmul, blocks, torch.matmul)).named().items()
    ):
        assert float((found - exact[name]).norm() / exact[name].norm()) < room, name


def test_three_products_keep_sixteen_bits() -> None:
    a, b = torch.rand(
        2, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).unbind()
    relative = (three_products(a, b) - a @ b).abs() / (a @ b)
    assert 2.0**-22 < float(relative.max()) < 2.0**-14


def test_the_order_of_the_products_shows_on_coherent_keys() -> None:
    def in_bf16(table: BackwardStages) -> torch.Tensor:
        plain = ensemble(contract_from_name("chunk64-bf16"), FORMATS["bf16"])[0]
        return chunk_backward(
            COHERENT.inputs(),
            cotangents(COHERENT, "both"),
            dtype=torch.float32,
            arithmetic=plain.arithmetic,
            backward=table,
        ).dbeta

    exact = gradients(BACKWARD).dbeta
    left, right = ((in_bf16(table).double() - exact).norm() for table in (BACKWARD, RIGHT_FIRST))
    assert float((in_bf16(BACKWARD) - in_bf16(RIGHT_FIRST)).norm()) > 0.3 * float(
        torch.minimum(left, right)
    )


def test_own_pairs_in_the_sums_lose_what_deep_decay_leaves_of_the_gates_gradient() -> None:
    deep = COHERENT.model_copy(update={"gate": "bound-20", "key": "random"})
    call, loss = deep.inputs(), cotangents(deep, "both")
    exact = chunk_backward(call, loss).dg
    apart = chunk_backward(call, loss, dtype=torch.float32).dg
    among = chunk_backward(
        call,
        loss,
        dtype=torch.float32,
        backward=scores_backward(torch.matmul, VECTOR, torch.matmul),
    ).dg
    assert float((among - exact).norm()) > 100 * float((apart - exact).norm())


# Relative rms errors of dg that flash-linear-attention 0.6.0 made on an NVIDIA H200 at T = 4096, by
# the gate, with safe_gate (reports/calibration_h200.json). Each hangs on one decision: the three
# products' operands hold one factor of the decay, not both, and beta k is rounded by itself.
MEASURED = {
    ("fp16", "bound-5", "random"): 2.012e-3,
    ("bf16", "log-sigmoid", "coherent-0.9"): 4.650e-3,
}
MEMBER = "matrix units that truncate, products of states summed in storage"


@pytest.mark.parametrize(("dtype", "gate", "key"), MEASURED)
def test_the_gates_gradient_errs_as_a_real_kernel_s_does_where_exponents_are_anchored(
    dtype: str, gate: str, key: str
) -> None:
    common: dict[str, Any] = {
        "H": 2,
        "HV": 2,
        "K": 128,
        "V": 128,
        "beta": "uniform",
        "state": "random",
        "value": "normal",
        "seed": 0,
    }
    tested = Problem.model_validate(
        {"B": 1, "T": 4096, "dtype": dtype, "gate": gate, "key": key, **common}
    )
    call, loss = tested.inputs(), cotangents(tested, "both")
    contract = replace(preset("fla", dtype), anchored=True)
    member = next(
        member for member in backward_members(contract, FORMATS[dtype]) if member.name == MEMBER
    )
    exact = chunk_backward(call, loss, stages=COMPENSATED).dg
    error = member_gradients(member, call, loss).dg - exact
    assert float(error.norm() / exact.norm()) == pytest.approx(MEASURED[dtype, gate, key], rel=0.1)
