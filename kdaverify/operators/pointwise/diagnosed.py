"""A failing case of a pointwise operation, with its tensors, for the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.checks.execute import watched
from kdaverify.diagnosis.answer import KernelErrors, answered
from kdaverify.diagnosis.tolerances import Scale, Tolerances
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.operators.pointwise.tolerance import allowances
from oracles.pointwise.operations import OPERATIONS

LEAST = 2.0**-149


@dataclass(frozen=True)
class PointwiseCase:
    """One operation, there and back.

    Args:
        judged: the implementation whose answer is looked into.
    """

    judged: Adapter
    problem: ActivationProblem

    def answer(self, adapter: Adapter, /) -> KernelErrors:
        return answered(
            adapter, self.problem.id, lambda: watched(lambda: self._run(adapter), "call")
        )

    def tolerances(self) -> Tolerances:
        x, rounded = self._arguments, self._call(self.judged).beside_one == "rounded"
        operation = OPERATIONS[self.problem.op]
        types = {
            operation.result: (
                FORMATS["fp32"] if self.problem.op != "l2norm" else FORMATS[self.problem.dtype]
            )
        }
        back = {
            name: format_of(x.tensors[source].dtype)
            for name, source in operation.gradients.items()
            if source in x.tensors
        }
        found = dict[str, Scale]()
        for formats, cotangent in ((types, None), (back, x.cotangent)):
            reported = allowances(
                self.problem.op,
                x.tensors,
                x.setting,
                cotangent=cotangent,
                rounded=rounded,
                formats=formats,
            )
            for name, allowed in reported.items():
                found[name] = Scale(allowed.exact, 1.0, 1.0, allowed.bound.clamp(min=LEAST))
        return found

    def _run(self, adapter: Adapter) -> dict[str, Tensor]:
        call, x = self._call(adapter), self._arguments
        found = {
            OPERATIONS[self.problem.op].result: call.forward(
                ActivationArguments(x.tensors, x.setting).mapped(torch.clone)
            )
        }
        return found if call.backward is None else {**found, **call.backward(x.mapped(torch.clone))}

    def _call(self, adapter: Adapter) -> ActivationCall:
        calls = adapter.activations(self.problem.dtype)
        if self.problem.op not in calls:
            raise AdapterError(f"{adapter.name}: does not expose {self.problem.op}")
        return calls[self.problem.op]

    @property
    def _arguments(self) -> ActivationArguments:
        tested = self.problem.question()
        return ActivationArguments(tested.tensors, tested.setting, tested.cotangent)
