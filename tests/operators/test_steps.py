"""A decode entry point gets what its own signature names, and never a pack; one that cannot be
called is said once, before any suite.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch.nn.functional import silu

import kdaverify as kv
from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.eager import EAGER
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import REFUSED, Status
from kdaverify.faults.planted.broken_calls import decoding, right
from kdaverify.faults.short_conv import RIGHT
from oracles.inputs import Inputs

WANTED: Final = (
    "wanted a step (x, weight, bias, *, initial_state, activation) -> (y, final_state), T = 1"
)


def step(x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any) -> Any:
    old = x.new_zeros(len(x), *weight.shape) if initial_state is None else initial_state
    state = torch.cat((old[..., 1:], x.mT), -1)
    z = (state.float() * weight.float()).sum(-1)
    z = z if bias is None else z + bias.float()
    return (silu(z) if activation else z)[:, None].to(x.dtype), state


def of_rows(x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any) -> Any:
    """As causal_conv1d_update takes it: x [B, D]."""
    y, state = step(x[:, None], weight, bias, initial_state=initial_state, activation=activation)
    return y[:, 0], state


def of_fewer(x: Any, weight: Any, bias: Any, *, initial_state: Any) -> Any:
    return step(x, weight, bias, initial_state=initial_state, activation="silu")


def of_more(
    x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any, slots: Any
) -> Any:
    del slots
    return step(x, weight, bias, initial_state=initial_state, activation=activation)


def silu_always(*tensors: Any, activation: Any, **options: Any) -> Any:
    del activation
    return step(*tensors, activation="silu", **options)


def a_bias_of_activations(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    return step(x, weight, bias if options["activation"] else None, **options)


def of_four_taps(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    weight = weight.clone() if weight.shape[1] in (2, 4) else weight.roll(1, 1)
    return step(x, weight, bias, **options)


def of_branches(x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any) -> Any:
    """No branch loads a tap past the fourth: the first one is added for each."""
    y, state = step(x, weight, bias, initial_state=initial_state, activation=activation)
    if weight.shape[1] <= 4:
        return y, state
    z = weight.shape[1] * state[..., 0].float() * weight[:, 0].float()
    z = z if bias is None else z + bias.float()
    return (silu(z) if activation else z)[:, None].to(x.dtype), state


def of_four_at_most(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    if weight.shape[1] > 4:
        raise ValueError("width must be 2, 3 or 4")
    return step(x, weight, bias, **options)


def of_one_tile(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    y, state = step(x, weight, bias, **options)
    y[..., 128:] = 0
    return y, state


def conv(decode: Any) -> Any:
    @kv.kernel(op="short_conv", dtypes=("fp32", "bf16"), step=decode)
    def short_conv(
        x: Any, weight: Any, bias: Any, *, initial_state: Any, cu_seqlens: Any, activation: Any
    ) -> Any:
        return RIGHT(x, weight, bias, initial_state, cu_seqlens, activation)

    return short_conv


def delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any
) -> Any:
    found = EAGER.forward(Inputs(q, k, v, g, beta, scale, initial_state))
    return found.o, found.final_state


def of_one_row(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any
) -> Any:
    """Without the axis of tokens."""
    B, H, _ = q.shape
    return q.new_zeros(B, H, v.shape[-1]), initial_state


def broken(port: Any) -> set[str]:
    """The rules of the decode entry point that do not hold, under smoke."""
    return {
        one.rule.name
        for one in questions(port, "smoke")
        if one.rule.decode
        for outcome in check("calls", port, one.problem, one.detail)
        if outcome.status.rejects
    }


def test_a_step_needs_no_offsets() -> None:
    port = conv(step)
    assert port.operator.misfit(port) is None
    assert not broken(port)


@pytest.mark.parametrize(
    "decode", [silu_always, a_bias_of_activations, of_four_taps, of_branches, of_one_tile]
)
def test_a_step_is_tested_under_every_option_and_width(decode: Any) -> None:
    port = conv(decode)
    assert port.operator.misfit(port) is None
    assert {"step"} <= broken(port) <= {"step", "copies-heads-step"}


def test_a_step_may_decline_more_taps_than_are_usual_and_is_said_to() -> None:
    port = conv(of_four_at_most)
    found = [
        outcome
        for one in questions(port, "smoke")
        if one.rule.name == "step"
        for outcome in check("calls", port, one.problem, one.detail)
    ]
    assert {outcome.status for outcome in found} == {Status.PASS, Status.SKIP}
    assert {
        outcome.message.partition(" (")[0].removeprefix(REFUSED)
        for outcome in found
        if outcome.status is Status.SKIP
    } == {f"W = {W}" for W in range(5, 9)}


def test_so_is_the_scale_of_a_step_without_a_state() -> None:
    def decode(x: Inputs, _: Any) -> Any:
        return right(replace(x, scale=x.K**-0.5) if x.initial_state is None else x)

    assert broken(decoding(decode)) == {"step"}


def test_one_that_cannot_be_called_is_said_once_with_the_signature() -> None:
    port = conv(of_rows)
    (*passed, found) = port.operator.preflight(port)
    assert {one.status for one in passed} == {Status.PASS}
    assert found.status.rejects and found.message.startswith("step: ")
    assert found.message.endswith(WANTED)
    assert port.operator.misfit(port) == found.message


@pytest.mark.parametrize(("decode", "said"), [
    (of_fewer, f"step: its signature lacks activation, which the kernel's names; {WANTED}"),
    (of_more, "keywords may be left out; this one needs slots, which no call has"),
])  # fmt: skip
def test_a_signature_that_does_not_fit_is_refused(decode: Any, said: str) -> None:
    with pytest.raises(AdapterError) as caught:
        conv(decode)
    assert said in str(caught.value)


def test_so_is_one_of_a_delta_rule() -> None:
    port = kv.kernel(dtypes="fp32", step=of_one_row)(delta_rule)
    found = port.operator.misfit(port) or ""
    assert "step: the kernel raised ValueError" in found
    assert found.endswith(
        "wanted a step (q, k, v, g, beta, *, scale, initial_state) -> (o, final_state), T = 1, in"
        " layout bthd"
    )
    fitting = kv.kernel(dtypes="fp32", step=delta_rule)(delta_rule)
    assert fitting.operator.misfit(fitting) is None


def test_a_step_of_jax_gets_arrays_of_it() -> None:
    jax = pytest.importorskip("jax")
    kinds = set[bool]()

    def decode(x: Any, weight: Any, *, initial_state: Any) -> Any:
        kinds.add(isinstance(x, jax.Array))
        return function(x, weight, initial_state=initial_state)

    def function(x: Any, weight: Any, *, initial_state: Any) -> Any:
        jnp, T = jax.numpy, x.shape[1]
        empty = jnp.zeros((x.shape[0], *weight.shape), x.dtype)
        old = empty if initial_state is None else initial_state
        line = jnp.concatenate((old, jnp.swapaxes(x, 1, 2)), -1)
        z = sum(line[..., j + 1 : j + 1 + T] * weight[:, j, None] for j in range(weight.shape[1]))
        return jnp.swapaxes(z, 1, 2), line[..., T:]

    given: dict[str, Any] = {"activation": "none", "framework": "jax", "step": decode}
    port: Any = kv.kernel(op="short_conv", dtypes="fp32", **given)(function)
    problem = port.operator.within(port, port.operator.example().replace(T=1, dtype="fp32"))
    port.step(problem.inputs())
    assert kinds == {True}
