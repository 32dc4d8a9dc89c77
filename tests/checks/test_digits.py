"""A kernel whose contract allows a thousand times the recurrence's error passes with a warning;
accurate ones have none.
"""

from __future__ import annotations

import pytest
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER, EAGER_RECURRENT, Eager
from kdaverify.checks.digits import MOST
from kdaverify.checks.forward import forward
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.problems import Problem

PLAIN = Problem(
    B=1,
    T=128,
    H=1,
    HV=1,
    K=16,
    V=16,
    dtype="fp32",
    gate="slow",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
COHERENT = PLAIN.replace(key="identical", beta="two")
INVERSE_IN_BF16 = Eager("inverse-in-bf16", {"fp32": "chunk64-fp32[R:bf16]"})
"""Its contract declares the error, which is far from what fp32 can do."""
KEYS_IN_BF16 = Eager("keys-in-bf16", {"fp32": "chunk64-fp32[kb:bf16]"})
CORRECTIONS_IN_FP16 = Eager("corrections-in-fp16", {"fp32": "chunk64-fp32[u:fp16]"})
OUTPUTS_OF_STATE_IN_BF16 = Eager("values-in-bf16", {"fp32": "chunk64-fp32[v_new:bf16]"})


def fewer(adapter: Adapter, problem: Problem) -> dict[str, float | None]:
    found: list[Outcome] = forward(adapter, problem)
    assert {outcome.status for outcome in found} == {Status.PASS}
    return {outcome.output: outcome.digits_fewer for outcome in found}


@pytest.mark.parametrize(
    "adapter",
    [INVERSE_IN_BF16, KEYS_IN_BF16, CORRECTIONS_IN_FP16, OUTPUTS_OF_STATE_IN_BF16],
    ids=lambda a: a.name,
)
def test_digits_that_a_contract_gives_away_are_counted(adapter: Adapter) -> None:
    digits = [found for found in fewer(adapter, PLAIN).values() if found is not None]
    assert digits and all(MOST < found < 7 for found in digits)


@pytest.mark.parametrize("problem", [PLAIN, COHERENT], ids=["random", "coherent"])
@pytest.mark.parametrize(
    "adapter",
    [EAGER, EAGER_RECURRENT, conforming("chunk", state="vk", gate="log2")],
    ids=lambda a: a.name,
)
def test_accurate_kernels_have_no_warning(adapter: Adapter, problem: Problem) -> None:
    assert {*fewer(adapter, problem).values()} == {None}


@pytest.mark.parametrize(("dtype", "half"), [("bf16", 1.2), ("fp16", 1.65)])
def test_operands_of_16_bits_are_warned_of_at_half_their_digits(dtype: str, half: float) -> None:
    # How much of what a contract allows is lost depends on the order of sums, which is the CPU's:
    # of fp16 on one input in two.
    tested = [fewer(EAGER, COHERENT.replace(dtype=dtype, seed=seed)) for seed in range(12)]
    digits = [found for reported in tested for found in reported.values() if found is not None]
    assert digits and all(found > half for found in digits)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_an_accurate_kernel_of_16_bits_has_no_warning_on_the_same_inputs(dtype: str) -> None:
    assert {*fewer(EAGER_RECURRENT, COHERENT.replace(dtype=dtype)).values()} == {None}
    assert {
        *fewer(
            Eager("fp32-inside", {dtype: "chunk64-fp32"}), COHERENT.replace(dtype=dtype)
        ).values()
    } == {None}


def test_what_the_operands_cannot_hold_is_not_lost() -> None:
    assert {*fewer(EAGER, PLAIN.replace(dtype="bf16")).values()} == {None}


def test_a_recurrence_that_overflows_is_no_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(error: Tensor, exact: Tensor) -> float:
        return float((error / exact.new_zeros(())).abs().max())

    monkeypatch.setattr("kdaverify.checks.digits.relative_error", infinite)
    assert {*fewer(INVERSE_IN_BF16, PLAIN).values()} == {None}


def test_the_recurrence_runs_only_where_a_warning_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdaverify.checks.digits.plainest", pytest.fail)
    fewer(EAGER, PLAIN)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rounding_o_to_16_bits_is_no_reason_to_run_the_recurrence(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdaverify.checks.digits.plainest", pytest.fail)
    fewer(Eager("fp32-inside", {dtype: "chunk64-fp32"}), PLAIN.replace(dtype=dtype))
