"""A delta product is judged as the delta rule it contains: right ones pass, wrong ones do not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any, Final, cast

import pytest
import torch
from torch import Tensor

from kdaverify import delta_product, kernel
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from kdaverify.operators.kda.not_applicable import outside
from kdaverify.problems import Problem

BATCH: Final = Problem(
    B=2,
    T=13,
    H=1,
    HV=2,
    K=8,
    V=4,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=4,
)
PACK: Final = BATCH.replace(B=1, T=22, lengths=(0, 7, 1, 0, 12))


@dataclass(frozen=True)
class Product:
    """A delta product in a loop over steps.

    Args:
        gate: (log gate of the token, step, steps) -> what the state is multiplied by, as a log.
        inside: the same, of what a step sees of the steps before it in its token; None: all of it.
        shown: (steps) -> the step after which o is read.
    """

    gate: Callable[[Tensor, int, int], Tensor] = lambda g, step, n: (
        g if step == 0 else torch.zeros_like(g)
    )
    inside: Callable[[Tensor], Tensor] | None = None
    shown: Callable[[int], int] = lambda n: n - 1
    parallel: bool = False

    def __call__(
        self,
        tokens: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = (None if x is None else x.float() for x in tokens)
        assert q is not None and k is not None and v is not None and beta is not None
        (B, T, H, K), (HV, V) = q.shape, v.shape[2:]
        q, k = (x.repeat_interleave(HV // H, 2).flatten(0, 1) for x in (q, k))
        v, beta, n = v.flatten(0, 1), beta.flatten(0, 1), v.shape[1] // T if T else 1
        g = q.new_zeros(B * T, HV) if g is None else g.flatten(0, 1)
        ends = [b * T for b in range(B + 1)] if cu_seqlens is None else cu_seqlens.tolist()
        rows, states = [q.new_zeros(HV, V)] * (B * T), list[Tensor]()
        for at, (first, end) in enumerate(pairwise(ends)):
            state = q.new_zeros(HV, K, V) if initial_state is None else initial_state[at]
            for t in range(first, end):
                before = state = self.gate(g[t], 0, n).exp()[:, None, None] * state
                for step in range(n):
                    if step:
                        state = self.gate(g[t], step, n).exp()[:, None, None] * state
                    row = t * n + step
                    seen = before if self.parallel else state
                    if self.inside is not None:
                        decay = self.inside(g[t]).exp()[:, None, None]
                        seen = before + decay * (state - before)
                    error = v[row] - torch.einsum("hk,hkv->hv", k[row], seen)
                    state = state + torch.einsum("h,hk,hv->hkv", beta[row], k[row], error)
                    if step == self.shown(n):
                        rows[t] = scale * torch.einsum("hk,hkv->hv", q[t], state)
            states.append(state)
        return torch.stack(rows).view(B, T, HV, V).to(tokens[2].dtype), torch.stack(states)


def gated(product: Product, gates: str, steps: int = 2) -> Adapter:
    @kernel(name="product", gates=gates, contract="recurrent-fp32", dtypes=("fp32", "bf16"))
    @delta_product(steps, gates=gates)
    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert k.shape[1] == steps * q.shape[1] == steps * g.shape[1] == beta.shape[1]
        return product((q, k, v, g, beta), scale, initial_state, cu_seqlens)

    return function


def ungated(product: Product, steps: int) -> Adapter:
    @kernel(name="product", gates="none", contract="recurrent-fp32", dtypes=("fp32", "bf16"))
    @delta_product(steps, gates="none")
    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        return product((q, k, v, None, beta), scale, initial_state, cu_seqlens)

    return function


one_step, two_steps = gated(Product(), "head"), gated(Product(), "none")
three_steps = ungated(Product(), 3)
"""Right ones, as `--impl` names them: one real step of two a token, two of two, three of three."""
RIGHT: Final = {"gated": one_step, "gated, grouped": two_steps, "ungated, 3 steps": three_steps}


def judged(adapter: Adapter, problem: Problem) -> list[Outcome]:
    inside = adapter.domain.fit(problem)
    assert adapter.supports(inside) is None
    return [*forward(adapter, inside), *gradients(adapter, inside, of="both")]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("problem", [BATCH, PACK, PACK.replace(state="absent")], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_one_passes(name: str, problem: Problem, dtype: str) -> None:
    found = judged(RIGHT[name], problem.replace(dtype=dtype))
    bad = [str(one) for one in found if one.status not in (Status.PASS, Status.SKIP)]
    assert bad == [] and sum(one.status is Status.PASS for one in found) >= 2


@pytest.mark.parametrize(
    ("product", "gates"),
    [
        (Product(gate=lambda g, _step, _n: g), "head"),
        (Product(gate=lambda g, step, n: g if step == n - 1 else 0 * g), "head"),
        (Product(shown=lambda _: 0), "head"),
        (Product(parallel=True), "none"),
        (Product(inside=lambda g: g), "none"),
    ],
    ids=[
        "a gate in every step",
        "the gate in the last step",
        "o after the first step",
        "all steps see the state before the token",
        "a decay between the steps of a token",
    ],
)
def test_a_wrong_one_fails(product: Product, gates: str) -> None:
    found = judged(gated(product, gates), BATCH)
    assert any(one.status is Status.FAIL for one in found)


STILL: Final = {
    "batch": BATCH.replace(gate="half-zero"),
    "no gate at all": BATCH.replace(gate="zero"),
    "pack": PACK.replace(gate="half-zero"),
    "tokens past the last offset": PACK.replace(gate="zero", T=25),
}
"""Problems of tokens that do not decay: several are one token of the product."""


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("name", STILL)
def test_with_gates_of_0_several_steps_of_a_token_are_tested(name: str, steps: int) -> None:
    right, wrong = (gated(Product(parallel=parallel), "head", steps) for parallel in (False, True))
    problem = right.domain.fit(STILL[name])
    assert {outcome.status for outcome in forward(right, problem)} == {Status.PASS}
    assert any(outcome.status is Status.FAIL for outcome in forward(wrong, problem))
    assert not any(outcome.status.rejects for outcome in judged(right, problem))
    other = right.domain.fit(BATCH)
    assert {outcome.status for outcome in forward(wrong, other)} == {Status.PASS}


def of_logits(steps: int, gates: str, *, given: Callable[[Tensor], Tensor]) -> Adapter:
    """A product of `steps` that takes logits, behind a wrapper."""
    product = Product()

    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        return product((q, k, v, g, given(beta.float())), scale, initial_state, cu_seqlens)

    rule = delta_product(steps, gates=gates)(function)

    @wraps(rule)
    def wrapped(*args: Any, **words: Any) -> Any:
        return rule(*args, **words)

    declared = kernel(
        name="product",
        gates=gates,
        beta="logit",
        contract="recurrent-fp32",
        packing="cu_seqlens",
        dtypes=("fp32", "bf16"),
    )
    return declared(wrapped)


@pytest.mark.parametrize(("steps", "gates"), [(2, "head"), (3, "head"), (2, "none"), (5, "none")])
@pytest.mark.parametrize("problem", [BATCH, PACK, BATCH.replace(gate="half-zero")], ids=str)
def test_one_that_takes_logits_gets_steps_that_change_nothing(
    steps: int, gates: str, problem: Problem
) -> None:
    """Of logit -inf: those of 0, which they had, write with half their strength."""
    found = judged(of_logits(steps, gates, given=torch.sigmoid), problem)
    assert [str(one) for one in found if one.status is not Status.PASS] == []


WRONG_SIGMOIDS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "twice": lambda x: 2 * x.sigmoid(),
    "of half": lambda x: (x / 2).sigmoid(),
}


@pytest.mark.parametrize("gates", ["head", "none"])
def test_a_wrong_sigmoid_of_its_logits_fails(gates: str) -> None:
    for wrong in WRONG_SIGMOIDS.values():
        found = judged(of_logits(2, gates, given=wrong), BATCH)
        assert any(one.status in (Status.FAIL, Status.NONFINITE) for one in found)


def test_a_direct_call_takes_what_is_declared() -> None:
    x, adapter = BATCH.inputs(), cast(Any, of_logits(2, "none", given=torch.sigmoid))
    rest = {"scale": x.factor, "initial_state": x.initial_state, "cu_seqlens": None}
    found, _ = adapter(x.q, x.k, x.v, x.beta.logit(), **rest)
    wanted, _ = cast(Any, two_steps)(x.q, x.k, x.v, x.beta, **rest)
    torch.testing.assert_close(found, wanted)


def without_gates(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return q, k, v, beta


def test_what_is_no_delta_product_is_refused_in_words() -> None:
    with pytest.raises(AdapterError, match="wanted at least 2 steps and gates='head' or 'none'"):
        delta_product(1, gates="head")
    with pytest.raises(AdapterError, match="the signature does not name g"):
        delta_product(2, gates="head")(without_gates)


def test_without_gates_the_new_function_takes_none() -> None:
    def function(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        return q, k, v, g, beta

    assert [*inspect.signature(delta_product(2, gates="none")(function)).parameters] == [
        "q",
        "k",
        "v",
        "beta",
    ]


def test_a_product_judged_without_gates_alone_names_those_that_it_takes() -> None:
    def function(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any,
    ) -> Any:  # fmt: skip
        raise NotImplementedError

    alone = kernel(name="product", gates="none")(delta_product(2, gates="none")(function))
    (said,) = [said for said in outside(alone) if "takes g" in said]
    assert said == (
        "gates other than 0 and -log 2, and their gradients: the product takes g, so judge it with"
        " gates='head' too"
    )
    assert not any("takes g" in said for said in outside(ungated(Product(), 2)))
