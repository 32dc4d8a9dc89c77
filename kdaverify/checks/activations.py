"""Activations: the operations beside the kernel, each there and back, element by element against what fp32 arithmetic may miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.activations import ActivationArguments, ActivationCall
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.isolation.arena import same
from kdaverify.adapters.isolation.fault import fault_of
from kdaverify.budgets.activations import Allowance, allowances
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.checks.elements import compare_elements, two_measures
from kdaverify.checks.execute import Misbehaviour, check_kind
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import TORCH, ActivationProblem
from kdaverify.problems.activation import GATES
from oracles.autograd import FORWARD_ONLY
from oracles.operations import OPERATIONS
from oracles.stages import Named

METHOD = "float64 activations"


def activated(adapter: Adapter) -> tuple[tuple[str, str], ...]:
    """(operation, format) of everything that it exposes and that can be judged: float64 is the oracle's own format."""
    return tuple((op, dtype) for dtype in adapter.dtypes if dtype != "fp64" for op in OPERATIONS if op in adapter.activations(dtype))


def activations(adapter: Adapter, problem: ActivationProblem) -> list[Outcome]:
    """Runs one operation there and back, and judges its result and its gradients."""
    call = adapter.activations(problem.dtype).get(problem.op)
    if call is None:
        return skipped(f"it does not expose {problem.op}")
    if problem.op in GATES and problem.parameters not in call.parameters:
        return skipped(f"{problem.op} takes parameters in {', '.join(call.parameters)}, not in {problem.parameters}")
    bench = _Bench(problem, call)
    return [*bench.forward(), *bench.backward()]


@dataclass(frozen=True)
class _Bench:
    """One problem and the implementation's function for it."""

    problem: ActivationProblem
    call: ActivationCall

    def forward(self) -> list[Outcome]:
        operation = OPERATIONS[self.problem.op]
        fmt = FORMATS[self.problem.dtype if self.problem.op == "l2norm" else "fp32"]
        x = self._arguments(backward=False)
        wanted = {operation.result: x.tensors[operation.takes[0]].shape}
        return self._judged(x, {operation.result: fmt}, wanted, lambda own: {operation.result: self.call.forward(own)})

    def backward(self) -> list[Outcome]:
        if self.call.backward is None:
            return [Outcome("gradients", Status.SKIP, f"{FORWARD_ONLY}{self.problem.op} has no backward")]
        x, run = self._arguments(backward=True), self.call.backward
        sources = {name: x[source] for name, source in OPERATIONS[self.problem.op].gradients.items()}
        present = {name: tensor for name, tensor in sources.items() if tensor is not None}
        formats = {name: _format(tensor) for name, tensor in present.items()}
        return self._judged(x, formats, {name: tensor.shape for name, tensor in present.items()}, run)

    def _arguments(self, *, backward: bool) -> ActivationArguments:
        question = self.problem.question()
        return ActivationArguments(question.tensors, question.setting, question.cotangent if backward else None)

    def _judged(
        self,
        x: ActivationArguments,
        formats: Mapping[str, Format],
        shapes: Mapping[str, torch.Size],
        run: Callable[[ActivationArguments], Named],
    ) -> list[Outcome]:
        op = self.problem.op
        try:
            found = _called(op, x, {name: (shapes[name], fmt.dtype) for name, fmt in formats.items()}, run)
        except Misbehaviour as fault:
            return [Outcome(fault.output, fault.status, fault.message)]
        rounded = self.call.beside_one == "rounded"
        allowed = allowances(op, x.tensors, x.setting, cotangent=x.cotangent, rounded=rounded, formats=formats)
        return [self._outcome(name, tensor, allowed[name], x) for name, tensor in found.items()]

    def _outcome(self, name: str, found: Tensor, allowed: Allowance, x: ActivationArguments) -> Outcome:
        comparison = compare_elements(name, found, allowed, x)
        told = f"{self.problem.op}: {comparison}"
        if name == "g" and comparison.status is Status.PASS:
            told += f"\n  {two_measures(found, allowed)}"
        return Outcome(name, comparison.status, told, comparison, METHOD)


def _format(tensor: Tensor) -> Format:
    return next(FORMATS[name] for name, dtype in TORCH.items() if dtype == tensor.dtype)


def _called(
    op: str, x: ActivationArguments, wanted: Mapping[str, tuple[torch.Size, torch.dtype]], run: Callable[[ActivationArguments], Any]
) -> dict[str, Tensor]:
    """What the function returns, on copies of its own.

    Raises:
        Misbehaviour: it raised, edited what it was given, or gave no tensor of the wanted shape and type.
        AdapterError: the call never came to the kernel.
    """
    own = x.mapped(torch.clone)
    try:
        returned = run(own)
    except AdapterError:
        raise
    except Exception as error:
        fault = fault_of(error)
        raise Misbehaviour(Status(fault.kind), "call", f"{op}: {fault.message}") from error
    for name, (shape, dtype) in wanted.items():
        check_kind(name, returned.get(name), tuple(shape), dtype)
    for name, tensor in {**x.tensors, "cotangent": x.cotangent}.items():
        after = own.cotangent if name == "cotangent" else own[name]
        if tensor is not None and after is not None and not same(tensor, after):
            raise Misbehaviour(Status.MUTATED_INPUT, "call", f"{op}: changed its input {name} in place")
    home = next(iter(x.tensors.values())).device
    return {name: returned[name].to(home) for name in wanted}
