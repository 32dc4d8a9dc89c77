"""Kernels of attention that return o alone, lse="none", or that round what they are given: right
ones keep every law of theirs, and wrong ones break one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager_attention import softmax_attention
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operator import call_operator
from kdaverify.operators.attention.problem import AttentionProblem
from tests.operators import plain_ports

Change = Callable[[Tensor], Tensor]


def _attention(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    given: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "sink": sink}
    parts = [softmax_attention(*one, **given) for one in zip(q, k, v, strict=True)]
    o, lse = zip(*parts, strict=True)
    return torch.stack(o), torch.stack(lse)


PORTS: Final[Mapping[str, Callable[..., tuple[Tensor, Tensor]]]] = {
    "attention": _attention,
    "mla_decode": plain_ports.mla_decode,
    "sparse_attention": plain_ports.sparse_attention,
    "merge_state": plain_ports.merge_state,
}
OF_PACKS: Final = ("requests-alone", "rows-of-nobody")
OF_SINKS: Final = ("no-sink", "sink-factor")
"""Laws that need packs, which the ports take none of, and sinks, which one of them takes."""
LAWS: Final = [
    (op, law)
    for op in PORTS
    for law in call_operator(op).laws()
    if law not in (OF_PACKS if op == "attention" else OF_SINKS)
]
BROKEN: Final[Mapping[tuple[str, str], Change]] = {
    ("attention", "values-by-powers-of-two"): lambda o: o.clamp(-1.0, 1.0),
    ("attention", "convexity"): lambda o: 4 * o,
    ("attention", "one-key"): lambda o: 1.01 * o,
    ("attention", "no-queries"): lambda o: 1.01 * o,
    ("attention", "duplicated-keys"): lambda o: o + 0.01 * torch.rand(o.shape),
    ("mla_decode", "requests-alone"): lambda o: o + o[:1],
    ("mla_decode", "shifted-keys"): lambda o: o + 0.01 * torch.rand(o.shape),
    ("sparse_attention", "queries-alone"): lambda o: o + o[:, :1],
    ("sparse_attention", "lists-twice"): lambda o: o + 0.01 * torch.rand(o.shape),
    ("merge_state", "identity"): lambda o: 1.01 * o,
    ("merge_state", "doubled"): lambda o: 1.01 * o,
    ("merge_state", "shifted"): lambda o: o + 0.01 * torch.rand(o.shape),
}
"""What a wrong kernel does to o, by the law that finds it."""


def _of_o_alone(op: str, change: Change = lambda o: o) -> Adapter:
    whole: Any = PORTS[op]

    @wraps(whole)
    def port(*tensors: Any, **options: Any) -> Tensor:
        return change(whole(*tensors, **options)[0])

    return kv.kernel(op=op, name="o alone", lse="none", dtypes="fp32", contract="math-fp32")(port)


def _rejected(op: str, law: str, adapter: Adapter) -> list[Outcome]:
    operator: Any = call_operator(op)
    problem = operator.probe("fp32").replace(**operator.laws()[law].wanted)
    problem = operator.within(adapter, problem)
    found = check("laws", adapter, problem, {"law": law})
    return [outcome for outcome in found if outcome.status.rejects]


@pytest.mark.parametrize(("op", "law"), LAWS)
def test_a_right_kernel_of_o_alone_keeps_every_law(op: str, law: str) -> None:
    assert not _rejected(op, law, _of_o_alone(op))


@pytest.mark.parametrize(("op", "law"), BROKEN)
def test_a_wrong_kernel_of_o_alone_breaks_its_law(op: str, law: str) -> None:
    found = _rejected(op, law, _of_o_alone(op, BROKEN[op, law]))
    assert {outcome.output for outcome in found} == {"o"}


def test_a_power_moves_between_keys_that_stay_exact() -> None:
    """In fp16 a sixteenth of what is below 2^-10 has fewer bits: a right port was rejected."""
    given: list[Tensor] = []

    @kv.kernel(op="attention", dtypes="fp16", contract="online-fp32")
    def port(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        given.append(q.double() * k.double())
        return _attention(q, k, v, softmax_scale=softmax_scale, causal=causal, sink=None)

    problem = AttentionProblem(dtype="fp16", H=1, d_k=64, d_v=64, seed=0)
    assert bool((problem.inputs().k.abs() < 2.0**-10).any())
    check("laws", port, problem, {"law": "moved-power"})
    assert len(given) == 2 and torch.equal(*given)


ROUNDED: Final = ("convexity", "one-key", "shifted-keys")
"""Laws whose bounds hold where products take the inputs as they are."""


@pytest.mark.parametrize("contract", ["math-tf32", "math-fp32"])
@pytest.mark.parametrize("law", ROUNDED)
def test_products_in_tf32_round_the_inputs_and_are_declared(law: str, contract: str) -> None:
    operator: Any = call_operator("attention")
    rounded = FORMATS["tf32"].round

    @kv.kernel(op="attention", dtypes="fp32", contract=contract)
    def port(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        q, k, v = map(rounded, (q, k, v))
        return _attention(q, k, v, softmax_scale=softmax_scale, causal=causal, sink=None)

    problem = operator.within(port, operator.probe("fp32").replace(**operator.laws()[law].wanted))
    statuses = {outcome.status for outcome in check("laws", port, problem, {"law": law})}
    assert statuses == {Status.SKIP} if contract == "math-tf32" else Status.FAIL in statuses
