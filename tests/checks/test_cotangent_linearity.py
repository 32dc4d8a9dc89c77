"""A backward that is not linear in the cotangents is rejected by one law or another; conforming
ones pass all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.cotangent_linearity import LAWS, Law, cotangent_linearity
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import EXPONENTS
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from tests.checks.backwards import Changed, Staged, detached

DENSE = Problem(
    B=1,
    T=12,
    H=1,
    HV=2,
    K=5,
    V=4,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
PACKED = DENSE.replace(T=14, lengths=(0, 8, 5), gate="mixed", key="coherent-0.9")


def rejected(adapter: Adapter, problem: Problem, law: Law, exponent: int = 0) -> dict[str, Outcome]:
    found = cotangent_linearity(adapter, problem, law=law, exponent=exponent)
    assert not any(outcome.status is Status.SKIP for outcome in found), found
    return {outcome.output: outcome for outcome in found if outcome.status.rejects}


@pytest.mark.parametrize(
    ("dtype", "law"),
    [case for case in product(("fp64", "fp32", "bf16", "fp16"), LAWS) if case != ("fp16", "power")],
)
def test_conforming_kernels_pass(dtype: str, law: Law) -> None:
    for exponent in EXPONENTS[dtype][1:] if law == "power" else (0,):
        assert rejected(find("eager"), PACKED.replace(dtype=dtype), law, exponent) == {}
        if dtype != "fp64":
            assert rejected(Staged(dtype=dtype), DENSE.replace(dtype=dtype), law, exponent) == {}


def given(change: Callable[[Tensor], Tensor]) -> Adapter:
    """A kernel that does something to its cotangents first."""

    def changed(dy: Cotangents) -> Cotangents:
        return Cotangents(*(None if x is None else change(x) for x in (dy.do, dy.d_final_state)))

    return Staged(given=changed)


def test_cotangents_clipped_at_some_size_are_rejected_by_the_law_that_reaches_it() -> None:
    assert rejected(given(lambda x: x.clamp(-6.0, 6.0)), DENSE, "sum")
    assert rejected(given(lambda x: x.clamp(-1e3, 1e3)), DENSE, "sum") == {}
    assert rejected(given(lambda x: x.clamp(-1e3, 1e3)), DENSE, "power", 20)


def test_a_threshold_below_which_cotangents_are_dropped_is_rejected() -> None:
    assert rejected(
        given(lambda x: x.where(x.abs() > 1e-6, torch.zeros_like(x))), DENSE, "power", -25
    )


def test_an_absolute_term_is_rejected_even_where_it_is_one_unit() -> None:
    def shifted(found: Gradients[Tensor]) -> Gradients[Tensor]:
        return replace(found, dg=found.dg + 1e-7)

    assert set(rejected(Staged(change=shifted), DENSE, "power", -25)) == {"dg"}
    assert set(rejected(Staged(change=shifted), DENSE, "zero")) == {"dg"}


def test_the_size_of_the_state_s_cotangent_ignored_is_rejected_to_the_bit_and_in_sums() -> None:
    kernel = given(lambda x: x / x.abs().max() if x.shape[1] == 2 else x)  # [N, HV, K, V]
    assert rejected(kernel, DENSE, "power", 20) and rejected(kernel, DENSE, "sum")


def test_nan_for_a_loss_of_zero_is_rejected_as_not_finite() -> None:
    found = rejected(
        Staged(
            change=lambda found: Gradients(
                **{n: x / x.abs().max() * x.abs().max() for n, x in found.named().items()}
            )
        ),
        PACKED,
        "zero",
    )
    assert {outcome.status for outcome in found.values()} == {Status.NONFINITE}
    assert "got nan, wanted 0" in found["dq"].message


class Drifting(Staged):
    """Gradients that differ in their last bit at every call,
    as with sums in the order of arrival.
    """

    calls = 0

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        self.calls += 1
        found = super().gradients(inputs, cotangents)
        return replace(found, dg=found.dg * (1 + self.calls * 2.0**-23))


def test_a_kernel_whose_sums_have_no_fixed_order_is_not_tested_for_bits() -> None:
    (outcome,) = cotangent_linearity(Drifting(), DENSE, law="power", exponent=20)
    assert outcome.status is Status.SKIP and "same bits" in outcome.message
    assert rejected(Drifting(), DENSE, "sum") == {}


@pytest.mark.parametrize("law", LAWS)
def test_forward_only_kernels_are_skipped_with_that_reason(law: Law) -> None:
    (outcome,) = cotangent_linearity(Changed(detached), DENSE.replace(dtype="fp32"), law=law)
    assert outcome.status is Status.SKIP and outcome.message.startswith("forward only")


def test_powers_of_two_are_not_tested_of_a_format_whose_subnormals_are_near() -> None:
    (outcome,) = cotangent_linearity(
        find("eager"), DENSE.replace(dtype="fp16"), law="power", exponent=-8
    )
    assert outcome.status is Status.SKIP and "stored in fp16" in outcome.message


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (
            "token",
            DENSE.replace(
                T=15,
                H=1,
                HV=1,
                K=32,
                V=32,
                beta="one",
                gate="half-zero",
                key="alternating",
                state="zero",
                value="tiny",
            ),
        ),
        (
            "chunk",
            DENSE.replace(
                T=15,
                H=1,
                HV=1,
                K=1,
                V=1,
                beta="near-one",
                gate="mild",
                key="zero-rows",
                state="asymmetric",
            ),
        ),
    ],
)
@pytest.mark.parametrize("exponent", [e for e in EXPONENTS["fp16"] if e > 0])
def test_gradients_that_one_of_two_calls_stores_as_subnormals_are_not_compared(
    form: str, problem: Problem, exponent: int
) -> None:
    """Of fp16, which keeps 2^-24 there: 1 of 480 elements of dv differed, and no rounding member of
    it underflowed in the ensemble.
    """
    adapter = conforming(form, dtype="fp16", scale="folded" if form == "token" else "argument")
    for seed in (34350, 65484, *range(20)):
        assert rejected(adapter, problem.replace(dtype="fp16", seed=seed), "power", exponent) == {}
