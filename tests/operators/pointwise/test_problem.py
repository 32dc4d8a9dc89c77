"""Problems of the operations beside the kernel: the same tensors from the same JSON, and a refusal
that names what is wrong.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import find, given, settings

from kdaverify.operator import problem_from_json
from kdaverify.operators.pointwise.cases import MOST, NAMES, activation_panel, activation_problems
from kdaverify.operators.pointwise.draws import ROWS, VALUES
from kdaverify.operators.pointwise.problem import SETTINGS, ActivationProblem
from kdaverify.problems import ProblemError, panel, settings_for
from oracles.pointwise.operations import OPERATIONS

GATE: dict[str, Any] = {
    "op": "gate_bounded",
    "T": 40,
    "HV": 3,
    "K": 5,
    "dtype": "bf16",
    "bias": "normal",
    "parameters": "bf16",
}


def made(**fields: Any) -> ActivationProblem:
    return ActivationProblem(**fields)


def same(a: ActivationProblem, b: ActivationProblem) -> bool:
    x, y = a.question(), b.question()
    tensors = all(torch.equal(x.tensors[name], y.tensors[name]) for name in x.tensors)
    return (
        x.tensors.keys() == y.tensors.keys()
        and tensors
        and torch.equal(x.cotangent, y.cotangent)
        and x.setting == y.setting
    )


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_json_brings_the_same_tensors_back(op: Any) -> None:
    for name in NAMES:
        tested = activation_panel(name, op, "fp16")
        back = problem_from_json(tested.to_json())
        assert isinstance(back, ActivationProblem) and back == tested and same(back, tested)
        assert back.id == tested.id and back.id.startswith(f"{op}-fp16-B2T17-HV3")


def test_defaults_are_left_out_of_the_json() -> None:
    tested = made(op="l2norm", T=1, dtype="fp32", values="normal")
    assert tested.to_json() == '{"T":1,"dtype":"fp32","op":"l2norm","values":"normal"}'


def test_problems_of_a_whole_call_are_still_read() -> None:
    tested = panel("fp32", "smoke")[0].problem
    assert problem_from_json(tested.to_json()) == tested
    for wrong in ("no json", '{"op":"gate"}', "[]"):
        with pytest.raises(ProblemError, match=r"problem: "):
            problem_from_json(wrong)


@pytest.mark.parametrize("values", VALUES)
def test_values_are_finite_in_every_format_and_as_wide_as_they_say(values: str) -> None:
    for dtype in ("fp32", "bf16", "fp16"):
        tested = made(**{**GATE, "dtype": dtype, "values": values, "rates": "extreme", "T": 200})
        tensors = tested.question().tensors
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
        assert float(tensors["z"].abs().max()) <= 1e4
        assert float(tensors["A_log"].abs().max()) <= 100
        assert tensors["A_log"].dtype == tensors["dt_bias"].dtype == torch.bfloat16


@pytest.mark.parametrize("values", ROWS)
def test_rows_of_every_norm_have_squares_that_fp32_holds(values: str) -> None:
    for dtype in ("fp32", "bf16", "fp16"):
        x = (
            made(op="l2norm", B=2, T=200, HV=3, K=128, dtype=dtype, values=values)
            .question()
            .tensors["x"]
        )
        assert bool(torch.isfinite(x.float().square().sum(-1)).all())


def test_mixed_rows_are_zero_tiny_huge_and_alone() -> None:
    x = made(op="l2norm", T=300, HV=2, K=16, dtype="fp32", values="mixed").question().tensors["x"]
    norms, nonzero = x.double().norm(dim=-1), (x != 0).sum(-1)
    assert (
        bool((norms == 0).any())
        and bool(((norms > 0) & (norms < 1e-20)).any())
        and bool((norms > 2**57).any())
    )
    assert bool((nonzero == 1).any()) and bool((nonzero == 16).any())


def test_heads_have_rates_of_their_own() -> None:
    rates = made(**GATE, values="normal").question().tensors["A_log"]
    assert len(set(rates.tolist())) == 3


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"values": "rows"}, "values: no distribution named 'rows'; known ones are normal, mixed"),
        ({"rates": "fast"}, "rates: no distribution named 'fast'"),
        ({"setting": 1.0}, "setting: wanted a negative lower bound, got 1.0"),
        ({"op": "l2norm", "setting": 0.0}, "setting: wanted a positive number, got 0.0"),
        ({"op": "beta_sigmoid"}, "K: beta has no channels, got 5"),
        ({"dtype": "fp64"}, "dtype"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_problem_that_cannot_be_tested_says_why(changes: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reported)):
        made(**{**GATE, "values": "normal", **changes})


@pytest.mark.parametrize("op", SETTINGS)
def test_drawn_problems_are_small_and_shrink_to_one_value(op: Any) -> None:
    @settings(settings_for("smoke"), max_examples=40)
    @given(tested=activation_problems(op, "bf16"))
    def small(tested: ActivationProblem) -> None:
        assert tested.B * tested.T * tested.HV * tested.K <= MOST and tested.dtype == "bf16"

    small()
    least = find(
        activation_problems(op, "bf16"),
        lambda _: True,
        settings=settings(database=None, derandomize=True),
    )
    assert (least.B, least.T, least.HV, least.K, least.values, least.seed) == (
        1,
        1,
        1,
        1,
        "normal",
        0,
    )
