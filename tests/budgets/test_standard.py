"""An exact 0 is demanded where every term of every sum is 0,
and nowhere else, whichever oracle proves it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.budgets import standard as held_against
from kdaverify.budgets.backward import GradientEmulation, emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference, standard
from kdaverify.checks.execute import execute
from kdaverify.checks.forward import forward
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.axes import Dtype
from oracles.certified import certify, recurrence
from oracles.gradients import Gradients

# One-hot keys with beta = 1 and no decay overwrite S_0 with values of 0: S - k k^T S cancels to an
# exact 0.
OVERWRITTEN: dict[str, Any] = {
    "gate": "zero",
    "key": "one-hot",
    "beta": "one",
    "state": "random",
    "value": "zero",
}
SILENT = OVERWRITTEN | {"state": "zero"}
CONTRACTS: dict[Dtype, str] = {
    "fp64": "chunk64-fp64",
    "fp32": "chunk64-fp32",
    "bf16": "chunk64-bf16",
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))


def problem(dtype: Dtype, axes: dict[str, Any]) -> Problem:
    return Problem(B=1, T=70, H=1, HV=1, K=4, V=4, dtype=dtype, seed=3, **axes)


def held(tested: Problem) -> Reference:
    inputs, contract, io = (
        tested.inputs(),
        contract_from_name(CONTRACTS[tested.dtype]),
        FORMATS[tested.dtype],
    )
    return standard(inputs, contract, io, emulate(inputs, contract, io))


@pytest.mark.parametrize("dtype", CONTRACTS)
def test_terms_that_cancel_demand_nothing(dtype: Dtype) -> None:
    tested = problem(dtype, OVERWRITTEN)
    proven = recurrence(tested.inputs(), bits=200)
    assert bool(proven.final_state.zero.any()), "the question is another one: nothing cancels"
    found = held(tested)
    assert not bool(found.exact("o").zero.any()) and not bool(found.exact("final_state").zero.any())


@pytest.mark.parametrize("dtype", CONTRACTS)
def test_nothing_to_add_demands_zeros(dtype: Dtype) -> None:
    found = held(problem(dtype, SILENT))
    assert bool(found.exact("o").zero.all()) and bool(found.exact("final_state").zero.all())


@pytest.mark.parametrize("dtype", CONTRACTS)
@pytest.mark.parametrize("axes", [OVERWRITTEN, SILENT], ids=["overwritten", "silent"])
def test_a_conforming_kernel_passes_both(dtype: Dtype, axes: dict[str, Any]) -> None:
    assert {outcome.status for outcome in forward(find("eager"), problem(dtype, axes))} == {
        Status.PASS
    }


def test_the_chunk_form_does_leave_a_rest_where_terms_cancel() -> None:
    tested = Problem.from_json(
        '{"B":1,"H":1,"HV":2,"K":8,"T":3,"V":1,"beta":"one","dtype":"bf16","gate":"mixed",'
        '"key":"one-hot","op":"kda","seed":0,"state":"random","value":"zero"}'
    )
    inputs = tested.inputs()
    final = execute(find("eager"), inputs, ("final_state",)).outputs["final_state"]
    assert bool((final[recurrence(inputs, bits=200).final_state.zero] != 0).any())
    assert {outcome.status for outcome in forward(find("eager"), tested)} == {Status.PASS}


@pytest.mark.parametrize(("dtype", "extra"), [("fp32", 0), ("fp64", 53 - 24)])
def test_balls_get_a_bit_for_every_bit_of_the_contract_beyond_fp32(
    dtype: Dtype, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[int] = []

    def recording(*args: Any, extra_bits: int, **options: Any) -> Any:
        tested.append(extra_bits)
        return certify(*args, extra_bits=extra_bits, **options)

    monkeypatch.setattr(held_against, "certify", recording)
    held(
        problem(
            dtype,
            {
                "gate": "mild",
                "key": "random",
                "beta": "uniform",
                "state": "random",
                "value": "normal",
            },
        ).replace(T=6)
    )
    assert tested == [extra]


PACK = Problem(
    B=1,
    T=20,
    H=1,
    HV=2,
    K=16,
    V=24,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
    lengths=(7, 0, 9),
)


def gradients_held(tested: Problem, emulation: GradientEmulation | None = None) -> Reference:
    inputs, given, contract, io = (
        tested.inputs(),
        cotangents(tested, "both"),
        contract_from_name("chunk64-bf16"),
        FORMATS["bf16"],
    )
    return gradient_standard(
        inputs, given, contract, io, emulation or emulate_gradients(inputs, given, contract, io)
    )


def test_gradients_are_zero_by_demand_on_padding_alone() -> None:
    found = gradients_held(PACK.replace(beta="zero"))
    for name, truth in found.truth.named().items():
        wanted = torch.zeros_like(truth.zero)
        if name != "d_initial_state":
            wanted[:, 16:] = True
        assert torch.equal(truth.zero, wanted), name
    whole = gradients_held(PACK.replace(B=2, T=9, lengths=None))
    assert not any(bool(truth.zero.any()) for truth in whole.truth.named().values())


def test_underflow_in_a_backward_pass_counts_once_for_every_term_and_is_enlarged() -> None:
    vanishing = contract_from_name("chunk64-bf16").vanishing
    assert {budget.lost for budget in gradients_held(PACK).budgets.values()} == {
        2.0**10 * 24 * vanishing
    }


def test_a_suffix_sum_that_cancels_may_be_off_by_roundoffs_where_the_ensemble_is_exact() -> None:
    truth = gradients_held(PACK).truth
    exact = Gradients(**{name: enclosure.high for name, enclosure in truth.named().items()})
    found = gradients_held(PACK, GradientEmulation({"exact": exact}, [exact, exact])).budgets["dg"]
    assert found.terms is not None
    floor = found.lost + 16 * 2.0**-24 * float(found.terms.max())
    rounding = FORMATS["fp32"].unit * float(truth.named()["dg"].high.abs().max()) / 2
    assert found.allowed.largest == pytest.approx(2.5 * max(floor, rounding), rel=1e-6)
    assert floor > rounding
