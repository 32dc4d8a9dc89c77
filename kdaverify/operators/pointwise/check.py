"""Activations: operations beside the kernel, both ways, against fp32 errors by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.isolation.arena import same
from kdaverify.adapters.isolation.fault import fault_of
from kdaverify.budgets.formats import FORMATS, Format, format_of
from kdaverify.checks.execute import CallError, check_kind, refuses_views
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import REFUSED, Status
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall
from kdaverify.operators.pointwise.elements import compare_elements, two_measures
from kdaverify.operators.pointwise.problem import GATES, ActivationProblem
from kdaverify.operators.pointwise.tolerance import ResultTolerance, allowances
from oracles.autograd import FORWARD_ONLY
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named

METHOD = "float64 activations"
Wanted = Mapping[str, tuple[torch.Size, Format]]
"""The shape and the format of every result."""


def activated(adapter: Adapter) -> tuple[tuple[str, str], ...]:
    """(operation, format) of all that it exposes for judging: float64 is the oracle's."""
    return tuple(
        (op, dtype)
        for dtype in adapter.dtypes
        if dtype != "fp64"
        for op in OPERATIONS
        if op in adapter.activations(dtype)
    )


def activations(adapter: Adapter, problem: ActivationProblem) -> list[Outcome]:
    """Runs one operation there and back, and judges its result and its gradients."""
    call = adapter.activations(problem.dtype).get(problem.op)
    if call is None:
        return skipped(f"it does not expose {problem.op}")
    if problem.op in GATES and problem.parameters not in call.parameters:
        return skipped(
            f"{problem.op} takes parameters in {', '.join(call.parameters)}, not in"
            f" {problem.parameters}"
        )
    if call.dense and problem.lies != "dense":
        return skipped(f"{problem.op} is declared to be handed dense tensors alone")
    bench = _ActivationRun(problem, call)
    return [*bench.forward(), *bench.backward()]


@dataclass(frozen=True)
class _ActivationRun:
    """One problem and the implementation's function for it."""

    problem: ActivationProblem
    call: ActivationCall

    def forward(self) -> list[Outcome]:
        operation, x = OPERATIONS[self.problem.op], self._arguments(backward=False)
        first = x.tensors[operation.takes[0]]
        fmt = format_of(first.dtype) if self.problem.op == "l2norm" else FORMATS["fp32"]
        return self._judged(
            x,
            {operation.result: (first.shape, fmt)},
            lambda own: {operation.result: self.call.forward(own)},
        )

    def backward(self) -> list[Outcome]:
        if self.call.backward is None:
            return [
                Outcome(
                    "gradients", Status.SKIP, f"{FORWARD_ONLY}{self.problem.op} has no backward"
                )
            ]
        x = self._arguments(backward=True)
        sources = {
            name: x[source] for name, source in OPERATIONS[self.problem.op].gradients.items()
        }
        wanted = {
            name: (tensor.shape, format_of(tensor.dtype))
            for name, tensor in sources.items()
            if tensor is not None
        }
        return self._judged(x, wanted, self.call.backward)

    def _arguments(self, *, backward: bool) -> ActivationArguments:
        question = self.problem.question()
        return ActivationArguments(
            question.tensors, question.setting, question.cotangent if backward else None
        )

    def _judged(
        self, x: ActivationArguments, wanted: Wanted, run: Callable[[ActivationArguments], Named]
    ) -> list[Outcome]:
        try:
            found = _called(self.problem.op, x, wanted, run)
        except CallError as fault:
            if self.problem.lies != "dense" and refuses_views(fault):
                return skipped(f"{REFUSED}tensors that are views ({fault.message})")
            return [Outcome(fault.output, fault.status, fault.message)]
        formats = {name: fmt for name, (_, fmt) in wanted.items()}
        rounded = self.call.beside_one == "rounded"
        allowed = allowances(
            self.problem.op,
            x.tensors,
            x.setting,
            cotangent=x.cotangent,
            rounded=rounded,
            formats=formats,
        )
        return [self._outcome(name, tensor, allowed[name], x) for name, tensor in found.items()]

    def _outcome(
        self, name: str, found: Tensor, allowed: ResultTolerance, x: ActivationArguments
    ) -> Outcome:
        untested = int(torch.isinf(allowed.bound).sum())
        beyond = (
            f"{untested} of {found.numel()} elements not judged: a factor or a product of the"
            " formula is no fp32 number"
        )
        if untested == found.numel():
            return Outcome(name, Status.SKIP, f"{self.problem.op}: {name}: {beyond}")
        comparison = compare_elements(name, found, allowed, x)
        reported = [f"{self.problem.op}: {comparison}"]
        if name == "g" and comparison.status is Status.PASS:
            reported.append(two_measures(found, allowed))
        return Outcome(
            name,
            comparison.status,
            "\n  ".join([*reported, *([beyond] if untested else [])]),
            comparison,
            METHOD,
        )


def _called(
    op: str, x: ActivationArguments, wanted: Wanted, run: Callable[[ActivationArguments], Any]
) -> dict[str, Tensor]:
    """What the function returns, on copies of its own.

    Raises:
        CallError: it raised, edited its input, or gave no tensor of the wanted shape and type.
        AdapterError: the call never came to the kernel.
    """
    own = x.mapped(torch.clone)
    try:
        returned = run(own)
    except AdapterError:
        raise
    except Exception as error:
        fault = fault_of(error)
        raise CallError(Status(fault.kind), "call", f"{op}: {fault.message}") from error
    if not isinstance(returned, Mapping):
        reported = (
            f"{op}: wanted the gradients by name ({', '.join(wanted)}), got"
            f" {type(returned).__name__}"
        )
        raise CallError(Status.TYPE, "gradients", reported)
    for name, (shape, fmt) in wanted.items():
        check_kind(name, returned.get(name), tuple(shape), fmt.dtype)
    for name, tensor in {**x.tensors, "cotangent": x.cotangent}.items():
        after = own.cotangent if name == "cotangent" else own[name]
        if tensor is not None and after is not None and not same(tensor, after):
            raise CallError(
                Status.MUTATED_INPUT, "call", f"{op}: changed its input {name} in place"
            )
    home = next(iter(x.tensors.values())).device
    return {name: returned[name].to(home) for name in wanted}
