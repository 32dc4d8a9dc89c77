"""An exact 0 is demanded where every term of every sum is 0, and nowhere else, whichever oracle proves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters import find
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.family import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Standard, standard
from kdaverify.checks.execute import execute
from kdaverify.checks.forward import forward
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.axes import Dtype
from oracles.certified import recurrence

# One-hot keys with beta = 1 and no decay overwrite S_0 with values of 0: S - k k^T S cancels to an exact 0.
OVERWRITTEN: dict[str, Any] = {"gate": "zero", "key": "one-hot", "beta": "one", "state": "random", "value": "zero"}
SILENT = OVERWRITTEN | {"state": "zero"}
CONTRACTS: dict[Dtype, str] = {"fp64": "chunk64-fp64", "fp32": "chunk64-fp32", "bf16": "chunk64-bf16"}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))


def problem(dtype: Dtype, axes: dict[str, Any]) -> Problem:
    return Problem(B=1, T=70, H=1, HV=1, K=4, V=4, dtype=dtype, seed=3, **axes)


def held(asked: Problem) -> Standard:
    inputs, contract, io = asked.inputs(), contract_from_name(CONTRACTS[asked.dtype]), FORMATS[asked.dtype]
    return standard(inputs, contract, io, emulate(inputs, contract, io))


@pytest.mark.parametrize("dtype", CONTRACTS)
def test_terms_that_cancel_demand_nothing(dtype: Dtype) -> None:
    asked = problem(dtype, OVERWRITTEN)
    proven = recurrence(asked.inputs(), bits=200)
    assert bool(proven.final_state.zero.any()), "the question is another one: nothing cancels"
    found = held(asked)
    assert not bool(found.exact("o").zero.any()) and not bool(found.exact("final_state").zero.any())


@pytest.mark.parametrize("dtype", CONTRACTS)
def test_nothing_to_add_demands_zeros(dtype: Dtype) -> None:
    found = held(problem(dtype, SILENT))
    assert bool(found.exact("o").zero.all()) and bool(found.exact("final_state").zero.all())


@pytest.mark.parametrize("dtype", CONTRACTS)
@pytest.mark.parametrize("axes", [OVERWRITTEN, SILENT], ids=["overwritten", "silent"])
def test_a_legal_kernel_passes_both(dtype: Dtype, axes: dict[str, Any]) -> None:
    assert {outcome.status for outcome in forward(find("eager"), problem(dtype, axes))} == {Status.PASS}


def test_the_chunk_form_does_leave_a_rest_where_terms_cancel() -> None:
    asked = Problem.from_json(
        '{"B":1,"H":1,"HV":2,"K":8,"T":3,"V":1,"beta":"one","dtype":"bf16","gate":"mixed","key":"one-hot","op":"kda","seed":0,'
        '"state":"random","value":"zero"}'
    )
    inputs = asked.inputs()
    final = execute(find("eager"), inputs, ("final_state",)).outputs["final_state"]
    assert bool((final[recurrence(inputs, bits=200).final_state.zero] != 0).any())
    assert {outcome.status for outcome in forward(find("eager"), asked)} == {Status.PASS}
