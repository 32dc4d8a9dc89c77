"""Operators that are one pipeline of sums and products: a short way to bring one along.

The algebra is written once for an `Arithmetic`, forward and backward; exact values, reference
ensemble, tolerances, stages and words follow.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.entry_point import Function
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import ExactValues, StorageContract, sampled_reference
from kdaverify.budgets.standard import Reference
from kdaverify.checks.compare import compare
from kdaverify.checks.location import Step
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.place import ElementPlace
from kdaverify.operator import BOTH, CallOperator, Choices
from kdaverify.operators.cotangents import normal_cotangents
from kdaverify.operators.sizes import WIDTHS, below
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.enclosure import Enclosure
from oracles.signature import TensorCall

UNIT = 2.0**-53
"""Unit roundoff of float64, in which exact values are computed."""
METHOD = "float64 sums"
Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class PassInputs:
    """What a pass, or a stage of it, is computed from.

    Args:
        call: what the kernel received.
        cotangents: by name; None for the forward.
        stored: the tensors of earlier stages that are given, by the names they are stored under.
    """

    call: Any
    cotangents: Named | None = None
    stored: Named = field(default_factory=dict[str, Tensor])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> PassInputs:
        """The same with every tensor changed."""

        def changed(tensors: Named) -> dict[str, Tensor]:
            return {name: change(tensor) for name, tensor in tensors.items()}

        loss = None if self.cotangents is None else changed(self.cotangents)
        return PassInputs(self.call.mapped(change), loss, changed(self.stored))

    def moduli(self) -> PassInputs:
        """The same with the modulus of every tensor and number."""
        found = self.mapped(torch.abs)
        numbers = {name: abs(number) for name, number in found.call.numbers().items()}
        return replace(found, call=replace(found.call, **numbers))


Run = Callable[[PassInputs, Arithmetic], dict[str, Tensor]]


@runtime_checkable
class StagedKernel(Protocol):
    """An implementation of a pipeline whose stages can be called by themselves."""

    def stage(self, name: str, x: PassInputs) -> Tensor:
        """The tensor that a stage stores under `name`, from those stored before it."""
        ...


class PipelineOperator(CallOperator):
    """An operator that is sums and products of its inputs. Its stages are the tensors it stores."""

    resampled = True
    staged = True

    @abc.abstractmethod
    def forward(self, call: Any, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """The outputs by name; storage by `arithmetic.store`, products by `arithmetic.dot`."""

    @abc.abstractmethod
    def backward(self, call: Any, cotangents: Named, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """The gradients of the inputs that are given, by name."""

    @abc.abstractmethod
    def roundings(self, call: Any) -> int:
        """Roundings on the longest path from an input to a result, or to a gradient."""

    def wrapped(self, function: Function, options: Mapping[str, Any]) -> Adapter:
        from kdaverify.operators.pipeline_kernel import PipelineFunction  # it needs this one first

        return PipelineFunction(self, function, options)

    def run(self, x: PassInputs, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """Outputs without cotangents, gradients with them."""
        if x.cotangents is None:
            return self.forward(x.call, arithmetic)
        return self.backward(x.call, x.cotangents, arithmetic)

    def stages(self, x: PassInputs, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """What every stage of a pass stores, by name, in order; a stage reads what is given of the
        stages before it in place of what they computed.
        """
        found = dict[str, Tensor]()

        def store(name: str, tensor: Tensor) -> Tensor:
            found[name] = arithmetic.store(name, tensor)
            return x.stored.get(name, found[name])

        self.run(x, replace(arithmetic, store=store))
        return found

    def reference(
        self, call: TensorCall, contract: StorageContract, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        return self._reference(self.run, PassInputs(call), contract, lambda _: io)

    def gradient_reference(
        self, call: TensorCall, cotangents: Named, contract: StorageContract, io: Format
    ) -> Reference:
        return self._reference(self.run, PassInputs(call, cotangents), contract, lambda _: io)

    def stage_reference(self, name: str, x: PassInputs, contract: StorageContract) -> Reference:
        """The exact tensor that a stage stores under `name`, and its tolerance."""

        def run(given: PassInputs, arithmetic: Arithmetic) -> dict[str, Tensor]:
            return {name: self.stages(given, arithmetic)[name]}

        return self._reference(run, x, contract, contract.storage)

    def lawful(self, adapter: Adapter, profile: str) -> Choices:
        pairs = [(dtype, name) for dtype in adapter.dtypes for name in self.laws()]
        return [(f"{dtype}-{name}", (name, dtype)) for dtype, name in pairs]

    def stage_steps(self, adapter: Adapter, problem: Any, *, both_passes: bool) -> Iterator[Step]:
        if not isinstance(adapter, StagedKernel):
            return
        call = adapter.received(problem.inputs())
        contract: Any = adapter.contract(problem.dtype)
        losses = [None, self.loss(problem, adapter.exposes(problem), BOTH, 0)]
        for loss in losses if both_passes else losses[:1]:
            yield from self._steps(adapter, PassInputs(call, loss), contract)

    def _steps(
        self, adapter: StagedKernel, x: PassInputs, contract: StorageContract
    ) -> Iterator[Step]:
        """The stages of one pass, each on the exact tensors before it, stored as the contract has
        it: an error of one stage is no error of the next.
        """
        for name, exact in self.stages(x.mapped(Tensor.double), NATIVE).items():
            held = self.stage_reference(name, x, contract)
            comparison = compare(name, adapter.stage(name, x).double(), held, x.call)
            message = f"stage {name}: {comparison}"
            outcome = Outcome(f"{name}.{name}", comparison.status, message, comparison, METHOD)
            yield Step("exact", name, outcome)
            kept = contract.stored(name, exact).to(contract.storage(name).dtype)
            x = replace(x, stored={**x.stored, name: kept})

    def _reference(
        self, run: Run, x: PassInputs, contract: StorageContract, formats: Callable[[str], Format]
    ) -> Reference:
        narrow = x.mapped(lambda tensor: tensor.to(contract.accumulate.dtype))
        exact = self._exact(run, x.mapped(Tensor.double))
        chosen = {name: formats(name) for name in exact.enclosures}
        return sampled_reference(
            exact, lambda arithmetic: run(narrow, arithmetic), contract, chosen
        )

    def _exact(self, run: Run, x: PassInputs) -> ExactValues:
        """Math: |computed - exact| <= n u (the same sum of the moduli of its terms), n the
        roundings of a term.

        Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
        """
        values, sizes = run(x, NATIVE), run(x.moduli(), NATIVE)
        # One more each for the sum of moduli itself and for a division that rounds.
        share = (self.roundings(x.call) + 2) * UNIT
        return ExactValues(
            {
                name: Enclosure(y, torch.zeros_like(y), share * sizes[name], sizes[name] == 0)
                for name, y in values.items()
            },
            METHOD,
        )

    def output_format(self, output: str, contract: StorageContract, io: Format) -> Format:
        return io

    def loss(
        self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int
    ) -> dict[str, Tensor]:
        return normal_cotangents(self, problem, problem.inputs(), exposed, exponent)

    def place(self, output: str, index: tuple[int, ...], call: TensorCall) -> ElementPlace:
        """Math letters for words, and the numbers of the call."""
        known = output in self.signature
        axes = self.signature[output].axes if known else [f"axis {n}" for n in range(len(index))]
        where = ", ".join(f"{axis} {at}" for axis, at in zip(axes, index, strict=True))
        numbers = ", ".join(f"{name} {number:g}" for name, number in call.numbers().items())
        return ElementPlace(index, where, numbers or "no numbers")

    def refusal(self, adapter: Adapter, problem: Any) -> str | None:
        return adapter.supports(problem)

    def smaller(
        self, problem: Any, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        axes = dict.fromkeys(axis for tensor in self.signature.inputs for axis in tensor.axes)
        for axis in axes:
            yield from (({axis: size}, detail) for size in below(getattr(problem, axis), WIDTHS))
