"""Gradients are those of what a kernel receives: a missing factor of its conventions is a wrong
gradient, and named by its input.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.kernel_adapter import KernelAdapter
from kdaverify.checks.gradcheck import gradcheck
from kdaverify.checks.gradients import gradients
from kdaverify.checks.self_consistency import self_consistency
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.problems import Problem

PROBLEM = Problem(
    B=1,
    T=9,
    H=1,
    HV=1,
    K=4,
    V=4,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
CONVENTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "log2": ({"gate": "log2"}, "dg"),
    "decay": ({"gate": "decay"}, "dg"),
    "logit": ({"beta": "logit"}, "dbeta"),
    "folded": ({"scale": "folded"}, "dq"),
}
FACTORS = {"log2": 1 / 0.6931471805599453, "decay": 0.97, "logit": 4.0, "folded": 0.5}


def scaled(named: str, source: str) -> KernelAdapter:
    """A conforming kernel whose gradient of one input is too large by a factor, as one that forgot
    its convention has it.
    """
    declared, _ = CONVENTIONS[named]
    right = conforming(**declared)

    def wrong(x: Tensor) -> Tensor:
        factor = FACTORS[named]
        return x * factor + (x * (1 - factor)).detach()

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None,
        **rest: Any,
    ) -> Any:
        x = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        x[source] = wrong(x[source])
        return right(*x.values(), initial_state=initial_state, **rest)

    def with_scale(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any
    ) -> Any:
        return call(q, k, v, g, beta, initial_state=initial_state, scale=scale)

    def without(q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any) -> Any:
        return call(q, k, v, g, beta, initial_state=initial_state)

    function = without if named == "folded" else with_scale
    return kernel(name="wrong", contract="recurrent-fp32", **declared)(function)


@pytest.mark.parametrize("named", CONVENTIONS)
def test_a_missing_factor_is_a_wrong_gradient_of_that_input_alone(named: str) -> None:
    output = CONVENTIONS[named][1]
    found = gradients(scaled(named, output.removeprefix("d")), PROBLEM, of="both")
    assert {outcome.output for outcome in found if outcome.status is Status.FAIL} == {output}


@pytest.mark.parametrize("named", CONVENTIONS)
def test_a_missing_factor_is_no_derivative_of_the_outputs(named: str) -> None:
    (found,) = self_consistency(scaled(named, CONVENTIONS[named][1].removeprefix("d")), PROBLEM)
    assert (
        found.status is Status.FAIL and f"over tolerance: {CONVENTIONS[named][1]}" in found.message
    )


@pytest.mark.parametrize("named", CONVENTIONS)
@pytest.mark.parametrize("form", ["token", "chunk"])
def test_float64_kernels_agree_with_differences_of_their_outputs(named: str, form: str) -> None:
    declared = CONVENTIONS[named][0]
    adapter = conforming(form, dtype="fp64", **declared)
    found = gradcheck(adapter, PROBLEM.replace(dtype="fp64", T=5))
    assert {outcome.status for outcome in found} == {Status.PASS}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_betas_and_decays_at_the_ends_of_their_range_have_finite_gradients(dtype: str) -> None:
    adapter = conforming(gate="decay", beta="logit", dtype=dtype)
    ends = PROBLEM.replace(dtype=dtype, gate="mixed", beta="mixed", T=33, K=16)
    found = gradients(adapter, ends, of="both")
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_nan_where_a_decay_is_zero_is_rejected() -> None:
    """0 / 0 of a kernel that takes the logarithm of a decay:
    no exact value is known there, but NaN is none.
    """

    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any) -> Any:
        return conforming(gate="decay")(
            q, k, v, g.log().exp(), beta, scale=scale, initial_state=initial_state
        )

    adapter = kernel(name="nan", contract="recurrent-fp32", gate="decay")(call)
    found = gradients(adapter, PROBLEM.replace(gate="hard-reset", T=33, K=16), of="o")
    assert [outcome.status for outcome in found if outcome.output == "dg"] == [Status.NONFINITE]
