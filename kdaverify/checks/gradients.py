"""Gradients: every derivative of a call against the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError, values_of
from kdaverify.adapters.isolation.arena import same
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from kdaverify.checks.execute import CallError, check_inputs_kept, check_kind, watched
from kdaverify.checks.outcome import Outcome, held_at_fastest, judged, of_failed_call, skipped
from kdaverify.checks.status import Status
from oracles.autograd import NO_GRAPH, ForwardOnlyError
from oracles.signature import TensorCall


def gradients(adapter: Adapter, problem: Any, *, of: str, exponent: int = 0) -> list[Outcome]:
    """Runs the problem there and back once and judges the gradient of every input.

    Args:
        of: the outputs that the loss depends on: both, o or final_state.
        exponent: of the power of two that scales the loss.
    """
    loss = adapter.operator.loss(problem, adapter.differentiates(problem), of, exponent)
    if isinstance(loss, str):
        return skipped(loss)
    given = handed(adapter, problem, loss)
    inputs = problem.inputs()
    try:
        found = run_backward(adapter, inputs, given)
    except ForwardOnlyError as reason:
        if NO_GRAPH in str(reason) and _has_a_graph_elsewhere(adapter, problem.dtype):
            return _without_a_graph(adapter, problem, inputs, given)
        return skipped(str(reason))
    except CallError as fault:
        return of_failed_call(adapter, inputs, fault)
    return judge_gradients(adapter, problem, inputs, given, found)


def _without_a_graph(
    adapter: Adapter, problem: Any, inputs: TensorCall, given: Any
) -> list[Outcome]:
    """What a call without a graph passes on: zeros. A path for few rows had no backward, and the
    port was accepted as one without gradients there.
    """
    found = {name: torch.zeros_like(x) for name, x in _sources(inputs).items()}
    outcomes = judge_gradients(adapter, problem, inputs, given, found)
    return [
        replace(one, message=f"{NO_GRAPH}, those of other calls do; {one.message}")
        if one.status.rejects
        else one
        for one in outcomes
    ]


@cache
def _has_a_graph_elsewhere(adapter: Adapter, dtype: str) -> bool:
    """Whether a call of an ordinary size is differentiated, in this format."""
    operator = adapter.operator
    example = operator.example()
    if example is None:
        return False
    problem = operator.within(adapter, example.replace(dtype=dtype))
    loss = operator.loss(problem, adapter.differentiates(problem), "both", 0)
    if isinstance(loss, str) or adapter.supports(problem) is not None:
        return False
    try:
        run_backward(adapter, problem.inputs(), handed(adapter, problem, loss))
    except (ForwardOnlyError, CallError, AdapterError):
        return False
    return True


def handed(adapter: Adapter, problem: Any, loss: Any) -> Any:
    """The cotangents of a loss as the backward of this kernel gets them."""
    return adapter.operator.handed(loss, adapter.contract(problem.dtype))


def judge_gradients(
    adapter: Adapter, problem: Any, inputs: TensorCall, given: Any, found: dict[str, Tensor]
) -> list[Outcome]:
    """Compares gradients of a loss with the truth."""
    received = adapter.received(inputs)
    contract = adapter.backward_contract(problem.dtype)
    io = FORMATS[problem.dtype]

    def hold(x: TensorCall) -> Reference:
        return adapter.operator.gradient_reference(x, given, contract, io)

    return judged(
        found,
        received,
        lambda: held_at_fastest(received, contract, hold),
        lambda other: run_backward(other, inputs, given),
    )


def run_backward(
    adapter: Adapter,
    inputs: TensorCall,
    given: Any,
    *,
    copied: Callable[[Any], Any] = TensorCall.copied,
) -> dict[str, Tensor]:
    """The gradients of all inputs that there are, checked but for their numbers.

    Args:
        copied: makes the copies of the inputs that are handed over, wherever they are to lie.
    Raises:
        CallError: the kernel raised, ended its process, edited an input or an incoming gradient, or
            returned another thing.
        ForwardOnlyError: it has no backward.
        AdapterError: the call never came to the kernel.
    """
    own, before = copied(inputs), _copies_of(given)
    returned = watched(lambda: adapter.gradients(own, given), "call")
    _check_cotangents_kept(given, before)
    wanted = _sources(inputs)
    found = values_of(returned)
    for name, source in wanted.items():
        check_kind(name, found[name], tuple(source.shape), source.dtype)
    check_inputs_kept(own, inputs)
    return {name: torch.Tensor.detach(found[name]) for name in wanted}


def _copies_of(given: Any) -> dict[str, Tensor]:
    return {name: dy.clone() for name, dy in values_of(given).items() if dy is not None}


def _check_cotangents_kept(given: Any, before: dict[str, Tensor]) -> None:
    """Refuses a backward that edited an incoming gradient: autograd hands the same tensor to every
    reader of an output, as of x and f(x) in a residual connection.

    Raises:
        CallError: naming the first that changed.
    """
    after = values_of(given)
    for name, dy in before.items():
        if not same(after[name].contiguous(), dy.contiguous()):
            raise CallError(
                Status.MUTATED_INPUT,
                name,
                f"{name}: the backward changed its incoming gradient in place; compute on a copy of"
                " it",
            )


def _sources(inputs: TensorCall) -> dict[str, torch.Tensor]:
    """The inputs that there are, by their gradients."""
    return {
        name: getattr(inputs, source)
        for name, source in inputs.signature.gradients.items()
        if inputs.holds(source)
    }
