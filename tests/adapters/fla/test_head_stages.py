"""The stage functions of FLA's gated delta rule, for CUDA and Ascend, conform, and a fault in one
is found in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import Parameter, Signature
from types import ModuleType
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, AdapterError, Output
from kdaverify.adapters.fla.functions import HEAD_FUNCTIONS, StageFunction
from kdaverify.adapters.stages import StageArguments, StageCall, torch_backward_stages, torch_stages
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.declared import declared_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.stage_forms import HEAD
from kdaverify.checks.forward import forward
from kdaverify.checks.location import FEEDS
from kdaverify.checks.stages import backward_stages, stages
from kdaverify.checks.status import Status
from kdaverify.problems import cotangents
from oracles.adjoint import adjoint
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.stages import Named
from oracles.tensors import FLOATING
from tests.adapters.fla.conftest import House
from tests.adapters.fla.test_stages import is_conforming
from tests.adapters.standins import MakeProblem
from tests.checks.staged import first_wrong

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


@pytest.mark.rotates
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


@pytest.mark.rotates
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


def as_in_a_port(known: StageFunction, x: Inputs) -> Callable[..., Any]:
    """One of FLA's functions in float64, from the oracle, for the call `x`."""

    def function(**given: Any) -> Any:
        tensors = {known.tensors[name]: given[name] for name in known.tensors}
        of_earlier = {n: y.double() for n, y in tensors.items() if n not in FLOATING}
        if "G" in of_earlier:
            natural = of_earlier["G"][..., None] * math.log(2)
            of_earlier["G"] = natural.expand(*natural.shape[:-1], x.K)
        found = HEAD.run(x, of_earlier, known.covers, chunk_size=64)
        if "G" in found:
            found["G"] = found["G"][..., 0] / math.log(2)
        written = [found[name].to(x.q.dtype) for name in known.gives]
        return written if len(written) > 1 else written[0]

    names = [*known.tensors, *known.settings, "cu_seqlens"]
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
    function.__signature__ = Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def test_a_port_of_the_functions_is_one_with_gates_of_a_head(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, module = make_problem(dtype="fp32", **GATED), ModuleType("port_of_heads")
    for name in ("cumsum", "intra", "state", "output"):
        known = HEAD_FUNCTIONS[name]
        setattr(module, known.name, as_in_a_port(known, problem.inputs()))
    monkeypatch.setitem(sys.modules, "port_of_heads", module)
    port = find("fla_port:module=port_of_heads,gates=head,dtypes=fp32")
    assert port.domain.gates == "head"
    assert list(port.stages("fp32")) == ["cumsum", "intra", "state", "output"]
    found = [*stages(port, problem), *forward(port, problem)]
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_other_gates_of_a_port_are_refused_in_words() -> None:
    with pytest.raises(AdapterError, match="gates: wanted channel or head, got 'none'"):
        find("fla_port:module=math,gates=none")
