"""The stage functions of FLA's gated delta rule, for CUDA and Ascend, conform, and a fault in one
is found in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.fla.functions import HEAD_FUNCTIONS
from kdaverify.adapters.stages import StageArguments, StageCall, torch_backward_stages, torch_stages
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.declared import declared_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.stage_forms import HEAD
from kdaverify.checks.location import FEEDS
from kdaverify.checks.stages import backward_stages, first_wrong, stages
from kdaverify.problems import cotangents
from oracles.adjoint import adjoint
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.stages import Named
from tests.adapters.fla.conftest import House
from tests.adapters.fla.test_stages import is_conforming
from tests.adapters.standins import MakeProblem

GATED: Final[dict[str, Any]] = {
    "gates": "head",
    "gate": "log-sigmoid",
    "B": 1,
    "H": 1,
    "HV": 2,
    "lengths": (5, 0, 64),
    "T": 70,
}


def test_in_float64_the_stages_are_the_gated_delta_rule(make_problem: MakeProblem) -> None:
    tested = make_problem(dtype="fp32", **{**GATED, "T": 150, "lengths": None})
    x, loss = tested.inputs(), cotangents(tested, "both")
    made = HEAD.run(x, {}, chunk_size=64)
    o, final = recurrence(x)
    assert torch.allclose(made["o"], o, rtol=1e-10, atol=1e-12)
    assert torch.allclose(made["final_state"], final, rtol=1e-10, atol=1e-12)
    do, d_final = loss.of(x)
    given = {**made, "do": do, "d_final_state": d_final}
    back = HEAD.run(x, given, (*HEAD.backward,), chunk_size=64)
    back["dk"] = back["dk_done"] + back["dk_added"]
    for name, exact in adjoint(x, loss).named().items():
        assert torch.allclose(back[name], exact, rtol=1e-10, atol=1e-11), name


@pytest.mark.parametrize("name", ["fla-gdn", "triton_npu-gdn"])
@pytest.mark.parametrize("feed", FEEDS)
def test_every_stage_function_is_conforming(
    house: House, make_problem: MakeProblem, name: str, feed: Any
) -> None:
    problem = make_problem(dtype="bf16", **GATED)
    found = [
        outcome
        for property_ in (stages, backward_stages)
        for outcome in property_(house(name), problem, feed=feed)
    ]
    assert [str(outcome) for outcome in found if not is_conforming(outcome)] == []
    tested = dict.fromkeys(outcome.output.partition(".")[0] for outcome in found)
    assert [*tested] == [*HEAD_FUNCTIONS]


Change = Callable[[dict[str, Tensor]], Named]


class InTorch(Adapter):
    """The stages in torch in the arithmetic of FLA's contract, what one of them writes changed."""

    name, dtypes = "stages in torch", ("bf16",)

    def __init__(self, wrong: str, change: Change) -> None:
        self._wrong, self._change = wrong, change

    def contract(self, dtype: str) -> Contract:
        return declared_contract("gdn64", dtype)

    def forward(self, inputs: Inputs) -> Output:
        raise NotImplementedError

    def proof(self) -> str:
        return "stages of its own"

    def stages(self, dtype: str) -> dict[str, StageCall]:
        contract, io = self.contract(dtype), FORMATS[dtype]
        calls = {**torch_stages(contract, io), **torch_backward_stages(contract, io)}
        right = calls[self._wrong].call

        def wrong(x: StageArguments) -> Named:
            return self._change({**right(x)})

        calls[self._wrong] = replace(calls[self._wrong], call=wrong)
        return calls


def times(name: str, factor: float) -> Change:
    return lambda written: {**written, name: factor * written[name]}


def without_end(written: dict[str, Tensor]) -> Named:
    """The last row of the last chunk gets nothing of the chunk's end."""
    part = written["dG_part"].clone()
    part[:, 68] = 0
    return {**written, "dG_part": part}


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("cumsum", times("G", 1.01)),
        ("scores", times("Akk", -1.0)),
        ("solve", times("R", 1.02)),
        ("wy", times("u", 1.02)),
        ("state", times("v_new", 1.02)),
        ("output", times("o", 1.02)),
        ("dv_local", times("dv_local", 1.02)),
        ("state_bwd", times("dh", 1.02)),
        ("dqkwg", without_end),
        ("wy_bwd", times("dk_added", 1.02)),
        ("intra_bwd", times("dG", 1.01)),
        ("cumsum_bwd", times("dg", 1.01)),
    ],
)
def test_a_fault_is_found_in_its_stage(
    make_problem: MakeProblem, stage: str, change: Change
) -> None:
    found = first_wrong(InTorch(stage, change), make_problem(dtype="bf16", **GATED), backward=True)
    assert found is not None and found.partition(" ")[0] == stage
