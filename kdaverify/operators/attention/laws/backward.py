"""Laws of the gradients of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.operators.attention.laws.bounded import attention_law, bounds, sinkless, within
from kdaverify.operators.relations import Tensors, exactly
from oracles.autograd import ForwardOnlyError

POWER: Final = 2.0**4
GradientCheck = Callable[[Adapter, Any, Mapping[str, Tensor], Tensors], list[Outcome]]


def _differentiated(check: GradientCheck) -> Callable[[Adapter, Any], list[Outcome]]:
    """A check of the gradients of the problem's loss."""

    def checked(adapter: Adapter, problem: Any) -> list[Outcome]:
        given: Any = adapter.operator.loss(problem, adapter.differentiates(problem), "both", 0)
        try:
            found = run_backward(adapter, problem.inputs(), given)
        except ForwardOnlyError as reason:
            return skipped(str(reason))
        return check(adapter, problem, given, found)

    return checked


def _linear(
    adapter: Adapter, problem: Any, given: Mapping[str, Tensor], found: Tensors
) -> list[Outcome]:
    larger = {name: POWER * dy for name, dy in given.items()}
    call = problem.inputs()
    wanted = {name: POWER * dx.double() for name, dx in found.items()}
    return exactly(call, run_backward(adapter, call, larger), wanted)


def _zeros(
    adapter: Adapter, problem: Any, given: Mapping[str, Tensor], found: Tensors
) -> list[Outcome]:
    call = problem.inputs()
    nothing = run_backward(
        adapter, call, {name: torch.zeros_like(dy) for name, dy in given.items()}
    )
    return exactly(call, nothing, {name: torch.zeros_like(dx) for name, dx in found.items()})


def _sums(
    adapter: Adapter, problem: Any, given: Mapping[str, Tensor], found: Tensors
) -> list[Outcome]:
    """sum_j dV_j = sum_i dO_i over the rows that see a key, for every request and key head."""
    call = problem.inputs()
    if problem.packed:
        return skipped("it needs a batch")
    group = problem.H // problem.h_kv
    d_o = given["do"].double().masked_fill(call.empty[..., None, None], 0.0)
    wanted = d_o.sum(1, keepdim=True).unflatten(2, (problem.h_kv, group)).sum(3)
    total = found["dv"].double().sum(1, keepdim=True)
    allowed = bounds(adapter, problem, call, given)["dv"].sum(1, keepdim=True)
    return within(call, {"dv": total}, {"dv": wanted}, {"dv": allowed}, "summed over all keys")


def _balanced(
    adapter: Adapter, problem: Any, given: Mapping[str, Tensor], found: Tensors
) -> list[Outcome]:
    """sum_j dK_j = c sum_i dL_i q_i: 0 where nothing depends on LSE."""
    call = problem.inputs()
    if problem.packed:
        return skipped("it needs a batch")
    group = problem.H // problem.h_kv
    d_lse = given.get("dlse", torch.zeros(problem.B, problem.H, problem.s_q)).double()
    weighted = d_lse.masked_fill(call.empty[:, None], 0.0).transpose(1, 2)[..., None]
    rows = (call.softmax_scale * weighted * call.q.double()).sum(1, keepdim=True)
    wanted = rows.unflatten(2, (problem.h_kv, group)).sum(3)
    total = found["dk"].double().sum(1, keepdim=True)
    allowed = bounds(adapter, problem, call, given)["dk"].sum(1, keepdim=True)
    return within(call, {"dk": total}, {"dk": wanted}, {"dk": allowed}, "summed over all keys")


def _law(
    name: str,
    statement: str,
    exists_for: str,
    check: GradientCheck,
    law: Callable[..., Any] = attention_law,
    **wanted: Any,
) -> Any:
    return law(name, statement, exists_for, _differentiated(check), backward=True, **wanted)


BATCH: Final[dict[str, Any]] = {"q_lengths": None, "k_lengths": None}
BACKWARD_LAWS: Final = (
    _law("linear-backward", "cotangents times 2^4 give gradients times 2^4, exactly",
         "clamps, thresholds, stale buffers in the backward", _linear, logits="normal",
         value="normal"),
    _law("no-cotangents", "cotangents of 0 give gradients of 0, exactly",
         "0 times NaN in rows without keys (B7), stale accumulators", _zeros),
    _law("sums-of-value-gradients",
         "over all keys dv sums to the sum of do over the rows that see a key",
         "padding rows in dv (B4), masks of the backward (M2, M3)", _sums, sinkless, **BATCH),
    _law("sums-of-key-gradients", "over all keys dk sums to c times the sum of dlse q",
         "delta of a part of o (B3), cotangents of LSE dropped (B8)", _balanced, sinkless, **BATCH),
)  # fmt: skip
