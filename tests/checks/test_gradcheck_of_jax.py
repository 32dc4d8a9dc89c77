"""A JAX kernel in float64 is differentiated by gradcheck through its VJP; a wrong VJP is rejected,
and second derivatives are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.adapters.jax_arrays import through_jax
from kdaverify.checks.gradcheck import Order, gradcheck
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.inputs import Inputs

jax = pytest.importorskip("jax")
pytest.importorskip("ml_dtypes")
jnp = pytest.importorskip("jax.numpy")

PROBLEM = Problem(
    B=1,
    T=4,
    H=1,
    HV=1,
    K=2,
    V=3,
    dtype="fp64",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=7,
)


@jax.jit
def recurrence(*arrays: Any) -> Any:
    """Math: section 2, for the arrays q, k, v, g, beta and S_0; the scale is K^-1/2."""

    def token(before: Any, x: Any) -> Any:
        q, k, v, g, beta = x
        decayed = jnp.exp(g)[..., None] * before
        after = (
            decayed
            + k[..., None]
            * (beta[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", decayed, k)))[..., None, :]
        )
        return after, k.shape[-1] ** -0.5 * jnp.einsum("bhkv,bhk->bhv", after, q)

    *tokens, state = arrays
    final, o = jax.lax.scan(token, state, tuple(jnp.moveaxis(x, 1, 0) for x in tokens))
    return jnp.moveaxis(o, 0, 1), final


@jax.jit
def vjp(arrays: Any, cotangents: Any) -> Any:
    return jax.vjp(recurrence, *arrays)[1](cotangents)


class Jax(Eager):
    """The recurrence in JAX with 64-bit types, the cotangent of beta multiplied by `wrong`."""

    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__("jax", {"fp64": "recurrent-fp64"})
        self._wrong = wrong

    def forward(self, inputs: Inputs) -> Output:
        def back(arrays: Any, cotangents: Any) -> Any:
            *found, dbeta, dS = vjp(arrays, cotangents)
            return (*found, self._wrong * dbeta, dS)

        x = inputs
        return Output(*through_jax(recurrence, back, x.q, x.k, x.v, x.g, x.beta, x.state))


def statuses(adapter: Eager, order: Order) -> dict[str, Status]:
    with jax.enable_x64():
        return {
            outcome.output: outcome.status for outcome in gradcheck(adapter, PROBLEM, order=order)
        }


def test_its_vjp_passes_on_every_input() -> None:
    assert set(statuses(Jax(), "first").values()) == {Status.PASS}


def test_a_vjp_off_by_one_in_a_hundred_is_rejected_by_its_name() -> None:
    assert [
        name for name, status in statuses(Jax(1.01), "first").items() if status is Status.FAIL
    ] == ["dbeta"]


def test_second_derivatives_do_not_pass_through_it() -> None:
    assert statuses(Jax(), "second") == {"call": Status.SKIP}
