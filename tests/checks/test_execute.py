"""Whatever a kernel does wrong beside its numbers gets a status and a message of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdaverify as kv
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

PROBLEM = Problem(
    B=1,
    T=9,
    H=1,
    HV=2,
    K=4,
    V=6,
    dtype="fp32",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
)


def right(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
    o, final = recurrence(Inputs(q, k, v, g, beta, scale, initial_state))
    return o.float(), final.float()


def port(change: Callable[..., Any]) -> kv.Adapter:
    @kv.kernel(name="port", contract="recurrent-fp32", dtypes=("fp32",))
    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
        return change(
            *right(q, k, v, g, beta, scale=scale, initial_state=initial_state), v, initial_state
        )

    return call


def raises(o: Any, final: Any, v: Any, state: Any) -> Any:
    raise RuntimeError("tile out of range")


def edits_its_input(o: Any, final: Any, v: Any, state: Any) -> Any:
    v[0, 3] = 0
    return o, final


def updates_the_state_in_place(o: Any, final: Any, v: Any, state: Any) -> Any:
    state.copy_(final)
    return o, final


def returns_its_input(o: Any, final: Any, v: Any, state: Any) -> Any:
    return v, final


def gives(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A port that computes rightly and returns `change` of its outputs."""

    def call(o: Any, final: Any, v: Any, state: Any) -> Any:
        del v, state
        return change(o, final)

    return call


def the_same(o: Any, final: Any) -> Any:
    return o, final


def no_o(o: Any, final: Any) -> Any:
    return None, final


def no_state(o: Any, final: Any) -> Any:
    return o, None


def numpy_o(o: Any, final: Any) -> Any:
    return o.numpy(), final


def short_o(o: Any, final: Any) -> Any:
    return o[:, :-1], final


def bf16_o(o: Any, final: Any) -> Any:
    return o.bfloat16(), final


def fp16_state(o: Any, final: Any) -> Any:
    return o, final.half()


def nan_o(o: Any, final: Any) -> Any:
    return o * float("nan"), final


def zero_o(o: Any, final: Any) -> Any:
    return o * 0, final


BAD: dict[str, tuple[Callable[..., Any], Status, str]] = {
    "raises": (
        raises,
        Status.ERROR,
        r"raised RuntimeError: tile out of range \(test_execute.py:\d+ in raises\)",
    ),
    "edits its input": (
        edits_its_input,
        Status.MUTATED_INPUT,
        "v: the kernel changed 12 of 108 elements of its input in place",
    ),
    "updates the state in place": (
        updates_the_state_in_place,
        Status.MUTATED_INPUT,
        "initial_state: the kernel changed",
    ),
    "returns a view of its input": (
        returns_its_input,
        Status.ALIASED_OUTPUT,
        "o: shares the memory of the input v",
    ),
    "returns None": (gives(no_o), Status.MISSING, "o: wanted a tensor of shape .*, got None"),
    "returns no state": (gives(no_state), Status.MISSING, "final_state: wanted a tensor"),
    "returns a NumPy array": (
        gives(numpy_o),
        Status.TYPE,
        "o: wanted a torch tensor, got numpy.ndarray",
    ),
    "returns a wrong shape": (
        gives(short_o),
        Status.SHAPE,
        r"o: wanted shape \[1, 9, 2, 6\], got \[1, 8, 2, 6\]",
    ),
    "returns a wrong dtype": (
        gives(bf16_o),
        Status.DTYPE,
        "o: wanted torch.float32.*got torch.bfloat16",
    ),
    "returns the state in 16 bits": (
        gives(fp16_state),
        Status.DTYPE,
        "final_state: wanted torch.float32",
    ),
    "returns NaN": (gives(nan_o), Status.NONFINITE, "o: 108 elements are not finite"),
    "returns zeros": (gives(zero_o), Status.FAIL, "o: .* error"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_misbehaviour_has_its_own_verdict_and_message(name: str) -> None:
    change, status, message = BAD[name]
    outcomes = [
        outcome
        for outcome in check("forward", port(change), PROBLEM, {})
        if outcome.status is not Status.PASS
    ]
    assert [outcome.status for outcome in outcomes] == [status]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(outcomes[0].message)


def test_the_right_kernel_passes() -> None:
    outcomes = check("forward", port(gives(the_same)), PROBLEM, {})
    assert [(outcome.output, outcome.status) for outcome in outcomes] == [
        ("o", Status.PASS),
        ("final_state", Status.PASS),
    ]


def test_the_caller_s_tensors_are_out_of_reach() -> None:
    inputs = PROBLEM.inputs()
    before = inputs.v.clone()
    with pytest.raises(CallError):
        execute(port(edits_its_input), inputs, ("o",))
    assert torch.equal(inputs.v, before)


def test_an_unsupported_dtype_is_a_skip_with_its_reason() -> None:
    (outcome,) = check("forward", port(raises), PROBLEM.replace(dtype="bf16"), {})
    assert outcome.status is Status.SKIP
    assert "port does not take bf16" in outcome.message


def test_a_kernel_that_flushes_subnormals_leaves_the_judge_s_own() -> None:
    def flushes(o: Any, final: Any, v: Any, state: Any) -> Any:
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor does not flush")
        return o, final

    execute(port(flushes), PROBLEM.inputs(), ("o",))
    assert float(torch.full((1,), 1e-30) * 1e-10) > 0
