"""Whatever a kernel does wrong beside its numbers gets a status and a message of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdaverify as kv
from kdaverify.checks.execute import Misbehaviour, execute
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

PROBLEM = Problem(
    B=1, T=9, H=1, HV=2, K=4, V=6, dtype="fp32", gate="mild", key="random", beta="uniform", state="random", value="normal", seed=1
)


def right(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
    o, final = recurrence(Inputs(q, k, v, g, beta, scale, initial_state))
    return o.float(), final.float()


def port(change: Callable[..., Any]) -> kv.Adapter:
    @kv.kernel(name="port", contract="recurrent-fp32", dtypes=("fp32",))
    def call(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any) -> Any:
        return change(*right(q, k, v, g, beta, scale=scale, initial_state=initial_state), v, initial_state)

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


BAD = {
    "raises": (raises, Status.ERROR, r"raised RuntimeError: tile out of range \(test_execute.py:\d+ in raises\)"),
    "edits its input": (edits_its_input, Status.MUTATED_INPUT, "v: the kernel changed 12 of 108 elements of its input in place"),
    "updates the state in place": (updates_the_state_in_place, Status.MUTATED_INPUT, "initial_state: the kernel changed"),
    "returns a view of its input": (returns_its_input, Status.ALIASED_OUTPUT, "o: shares the memory of the input v"),
    "returns None": (lambda o, final, v, s: (None, final), Status.MISSING, "o: wanted a tensor of shape .*, got None"),
    "returns no state": (lambda o, final, v, s: (o, None), Status.MISSING, "final_state: wanted a tensor"),
    "returns a NumPy array": (lambda o, final, v, s: (o.numpy(), final), Status.TYPE, "o: wanted a torch tensor, got numpy.ndarray"),
    "returns a wrong shape": (
        lambda o, final, v, s: (o[:, :-1], final),
        Status.SHAPE,
        r"o: wanted shape \[1, 9, 2, 6\], got \[1, 8, 2, 6\]",
    ),
    "returns a wrong dtype": (lambda o, final, v, s: (o.bfloat16(), final), Status.DTYPE, "o: wanted torch.float32.*got torch.bfloat16"),
    "returns the state in 16 bits": (lambda o, final, v, s: (o, final.half()), Status.DTYPE, "final_state: wanted torch.float32"),
    "returns NaN": (lambda o, final, v, s: (o * float("nan"), final), Status.NONFINITE, "o: 108 elements are not finite"),
    "returns zeros": (lambda o, final, v, s: (o * 0, final), Status.FAIL, "o: .* error"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_misbehaviour_has_its_own_verdict_and_message(name: str) -> None:
    change, status, message = BAD[name]
    outcomes = [outcome for outcome in check("forward", port(change), PROBLEM, {}) if outcome.status is not Status.PASS]
    assert [outcome.status for outcome in outcomes] == [status]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(outcomes[0].message)


def test_the_right_kernel_passes() -> None:
    outcomes = check("forward", port(lambda o, final, v, s: (o, final)), PROBLEM, {})
    assert [(outcome.output, outcome.status) for outcome in outcomes] == [("o", Status.PASS), ("final_state", Status.PASS)]


def test_the_caller_s_tensors_are_out_of_reach() -> None:
    inputs = PROBLEM.inputs()
    before = inputs.v.clone()
    with pytest.raises(Misbehaviour):
        execute(port(edits_its_input), inputs, ("o",))
    assert torch.equal(inputs.v, before)


def test_an_unsupported_dtype_is_a_skip_with_its_reason() -> None:
    (outcome,) = check("forward", port(raises), PROBLEM.replace(dtype="bf16"), {})
    assert outcome.status is Status.SKIP
    assert "port does not take bf16" in outcome.message
