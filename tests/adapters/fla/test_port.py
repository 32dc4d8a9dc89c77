"""A port of FLA's stage functions plugs in by the name of its module,
and what does not fit is said plainly.
"""

from __future__ import annotations

import functools
import re
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from kdaverify.adapters import AdapterError, find
from kdaverify.adapters.fla.functions import BACKWARD_FUNCTIONS, FUNCTIONS
from kdaverify.adapters.fla.port import FlaPort
from kdaverify.adapters.fla.stages import stage_call
from kdaverify.adapters.stages import StageArguments, chain, formats_of
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.forward import forward
from kdaverify.checks.location import FEEDS, Feed
from kdaverify.checks.stages import backward_stages
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from tests.adapters.fla import torch_port, torch_port_backward
from tests.adapters.standins import MakeProblem
from tests.checks.staged import first_wrong

MODULE = "tests.adapters.fla.torch_port"
PACK = {"B": 1, "H": 1, "HV": 2, "lengths": (0, 5, 66, 0, 70), "T": 145}


def arguments(problem: Problem, adapter: FlaPort) -> StageArguments:
    contract = adapter.contract(problem.dtype)
    return StageArguments(
        problem.inputs(), {}, contract.chunk_size, formats_of(contract, FORMATS[problem.dtype])
    )


def port(spec: str = f"fla_port:module={MODULE}") -> FlaPort:
    adapter = find(spec)
    assert isinstance(adapter, FlaPort)
    return adapter


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("changes", [{"T": 70}, PACK], ids=["dense", "pack"])
def test_a_port_named_by_its_module_is_judged_end_to_end(
    make_problem: MakeProblem, dtype: str, changes: dict[str, Any]
) -> None:
    found = forward(port(), make_problem(dtype=dtype, **changes))
    assert {outcome.status for outcome in found} == {Status.PASS}
    assert port().proof() == "nothing yet" and "cumsum, intra, wy, state, output" in ", ".join(
        port().stages(dtype)
    )


BACKWARD = "tests.adapters.fla.torch_port_backward"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("feed", FEEDS)
def test_the_backward_of_a_port_is_judged_function_by_function(
    make_problem: MakeProblem, dtype: str, feed: Feed
) -> None:
    found = backward_stages(
        port(f"fla_port:module={BACKWARD}"),
        make_problem(dtype=dtype, gate="slow", **PACK),
        feed=feed,
    )
    assert {outcome.status for outcome in found} == {Status.PASS}
    assert {outcome.output.partition(".")[0] for outcome in found} == {*BACKWARD_FUNCTIONS}


def test_a_fault_in_a_fused_function_of_a_port_is_named_with_its_tensor(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ModuleType("wrong_port")
    vars(wrong).update(
        {
            known.name: getattr(torch_port_backward, known.name)
            for known in BACKWARD_FUNCTIONS.values()
        }
    )

    @functools.wraps(torch_port_backward.chunk_kda_bwd_wy_dqkg_fused)
    def without_the_end(*args: Any, **given: Any) -> Any:
        dq, dk, dv, db, dg, dA = torch_port_backward.chunk_kda_bwd_wy_dqkg_fused(*args, **given)
        dg[:, 63] = 0
        return dq, dk, dv, db, dg, dA

    vars(wrong)["chunk_kda_bwd_wy_dqkg_fused"] = without_the_end
    monkeypatch.setitem(sys.modules, "wrong_port", wrong)
    assert (
        first_wrong(
            port("fla_port:module=wrong_port"), make_problem(dtype="bf16", T=70), backward=True
        )
        == "wy_dqkg (dG_wy)"
    )


def test_a_cumsum_without_a_way_back_is_of_the_forward_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def summed(g: Any, chunk_size: int, scale: Any = None) -> None: ...

    alone = ModuleType("alone")
    alone.chunk_local_cumsum = summed  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "alone", alone)
    assert list(port("fla_port:module=alone").stages("bf16")) == ["cumsum"]


def test_a_port_in_natural_logarithms_says_so(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    natural = ModuleType("natural_port")
    for known in FUNCTIONS.values():
        if hasattr(torch_port, known.name):
            setattr(natural, known.name, getattr(torch_port, known.name))

    def summed(g: Any, chunk_size: int, scale: Any = None, **kwargs: Any) -> Any:
        assert scale is None
        return torch_port.chunk_local_cumsum(g, chunk_size, scale=1.0, **kwargs)

    natural.chunk_local_cumsum = summed  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "natural_port", natural)
    problem = make_problem(T=70)
    named = (
        port("fla_port:module=natural_port,gate=log")
        .stages("fp32")["cumsum"]
        .call(arguments(problem, port()))
    )
    assert torch.allclose(named["G"][:, :64], problem.inputs().g[:, :64].cumsum(1), atol=1e-4)


def test_gates_go_there_and_back_in_base_2(make_problem: MakeProblem) -> None:
    adapter, problem = port(), make_problem(T=70)
    G = adapter.stages("fp32")["cumsum"].call(arguments(problem, adapter))["G"]
    assert torch.allclose(
        G[:, :64].float(), problem.inputs().g[:, :64].cumsum(1), rtol=1e-6, atol=1e-5
    )
    received = adapter.stages("fp32")["state"].received("G", G.float())
    assert 0 < float((received - G.float()).abs().max()) < 1e-5


def complaint(function: Any, problem: Problem) -> str:
    stage = stage_call(FUNCTIONS["cumsum"], lambda: function)
    with pytest.raises(AdapterError) as reported:
        stage.call(arguments(problem, port()))
    return str(reported.value)


def test_parameters_that_do_not_fit_are_named(make_problem: MakeProblem) -> None:
    def renamed(gates: Any, chunk_size: int) -> None: ...
    def demanding(g: Any, chunk_size: int, workspace: Any) -> None: ...
    def unpacked(g: Any, chunk_size: int) -> None: ...

    assert "chunk_local_cumsum: has no parameter g; FLA's are g, scale" in complaint(
        renamed, make_problem(T=3)
    )
    assert "chunk_local_cumsum: wants workspace, which FLA's has not" in complaint(
        demanding, make_problem(T=3)
    )
    assert "has no parameter cu_seqlens" in complaint(unpacked, make_problem(**PACK))


def test_too_few_results_are_reported(make_problem: MakeProblem) -> None:
    adapter, problem = port(), make_problem(T=3)
    x = arguments(problem, adapter)
    x = x.beside(chain({name: adapter.stages("fp32")[name] for name in ("cumsum", "intra")}, x))

    def two(k: Any, w: Any, u: Any, gk: Any, initial_state: Any) -> tuple[Any, Any]:
        return k, w

    short = stage_call(FUNCTIONS["state"], lambda: two)
    with pytest.raises(
        AdapterError, match="wanted h, v_new, final_state in this order, got 2 values"
    ):
        short.call(x)


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ("fla_port:colour=red", "no option 'colour'; it has module, dtypes"),
        ("fla_port:gate=log", "takes options: fla_port:module=MODULE"),
        ("fla_port:module=json", "json: holds none of FLA's stage functions (chunk_local_cumsum"),
        ("fla_port:module=no_such_port", "no_such_port: cannot be imported"),
        (f"fla_port:module={MODULE},gate=decay", "gate: wanted log2 or log"),
        (f"fla_port:module={MODULE},dtypes=fp8", "dtypes: wanted formats of"),
        (f"fla_port:module={MODULE},contract=chunk", "contract: contract 'chunk' is not known"),
    ],
)
def test_a_port_that_cannot_be_named_says_why(spec: str, reported: str) -> None:
    with pytest.raises(AdapterError, match=re.escape(reported)):
        find(spec)


def test_an_incomplete_port_has_stages_and_no_forward(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ModuleType("alone")
    vars(alone)["chunk_gla_fwd_o_gk"] = torch_port.chunk_gla_fwd_o_gk
    monkeypatch.setitem(sys.modules, "alone", alone)
    adapter = port("fla_port:module=alone")
    assert list(adapter.stages("bf16")) == ["output"]
    with pytest.raises(
        AdapterError, match="stage output: takes v_new, G, Aqk, h, which no stage before it gives"
    ):
        adapter.forward(make_problem(T=3).inputs())
