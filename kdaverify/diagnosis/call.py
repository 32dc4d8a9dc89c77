"""A case of a whole call, forward or backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from kdaverify.checks.causality import before, prefix, with_hostile_tokens
from kdaverify.checks.execute import execute
from kdaverify.checks.forward import implementation_of
from kdaverify.checks.gradients import handed, run_backward
from kdaverify.checks.packing import arranged
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.resume import resumed
from kdaverify.diagnosis.answer import KernelErrors, answered
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.tolerances import Tolerances, scale


@dataclass(frozen=True)
class DiagnosedCall:
    """One property of one problem.

    Args:
        judged: the implementation whose answer is looked into.
        problem: that of the question.
    """

    question: PropertyCase
    judged: Adapter
    problem: Any

    def answer(self, adapter: Adapter, /) -> KernelErrors:
        # A kernel converts what it is given by itself; others are given what it made of that.
        own = self.problem.inputs()
        inputs = own if adapter is self.judged else self.judged.received(own)
        masks = self.judged.operator.undefined(inputs)
        return answered(
            adapter, self.problem.id, lambda: defined(self._call(adapter, inputs), masks)
        )

    def tolerances(self) -> Tolerances:
        held = self._standard(self.judged.received(self.problem.inputs()))
        io = FORMATS[self.problem.dtype]
        exact = defined(
            {name: held.exact(name).high.cpu() for name in held.budgets},
            {name: budget.undefined for name, budget in held.budgets.items()},
        )
        least = io.unit * max(
            (float(tensor.abs().max()) for tensor in exact.values() if tensor.numel()), default=0.0
        )
        allowed = {name: budget.allowed for name, budget in held.budgets.items()}
        return {
            name: scale(exact[name], reported.rms, reported.largest, least=least)
            for name, reported in allowed.items()
        }

    def _call(self, adapter: Adapter, inputs: Any) -> dict[str, Tensor]:
        if PROPERTIES[self.question.property].backward:
            return run_backward(adapter, inputs, self._cotangents)
        return _WAYS.get(self.question.property, _called)(self, adapter, inputs)

    def _standard(self, inputs: Any) -> Reference:
        tested = implementation_of(self.judged, self.question.detail)
        io = FORMATS[self.problem.dtype]
        dtype = self.problem.dtype
        if PROPERTIES[self.question.property].backward:
            return tested.operator.gradient_reference(
                inputs, self._cotangents, tested.backward_contract(dtype), io
            )
        contract = tested.contract(dtype)
        cuts = (self.question.detail["cut"],) if self.question.property == "resume" else ()
        if self.question.property == "causality":
            inputs = prefix(inputs, self.question.detail["cut"])
        return tested.operator.reference(inputs, contract, io, cuts=cuts)

    @property
    def _cotangents(self) -> Any:
        detail, operator = self.question.detail, self.judged.operator
        exposed = self.judged.exposes(self.problem)
        of = detail.get("of", operator.whole(exposed))
        loss = operator.loss(self.problem, exposed, of, detail.get("exponent", 0))
        return loss if isinstance(loss, str) else handed(self.judged, self.problem, loss)


def defined(values: Mapping[str, Tensor], masks: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Outputs with 0 in the elements that have no exact value."""
    given = {name: masks.get(name) for name in values}
    return {
        name: value if mask is None else value.masked_fill(mask.to(value.device), 0.0)
        for (name, value), mask in zip(values.items(), given.values(), strict=True)
    }


Way = Callable[[DiagnosedCall, Adapter, Any], dict[str, Tensor]]


def _called(call: DiagnosedCall, adapter: Adapter, inputs: Any) -> dict[str, Tensor]:
    return execute(adapter, inputs, call.judged.exposes(call.problem)).outputs


def _arranged(call: DiagnosedCall, adapter: Adapter, inputs: Any) -> dict[str, Tensor]:
    return arranged(adapter, inputs, call.judged.exposes(call.problem), **call.question.detail)


def _under_option(call: DiagnosedCall, adapter: Adapter, inputs: Any) -> dict[str, Tensor]:
    # A fault that does not depend on an option is the same under it.
    other = adapter.variants().get(call.question.detail["variant"], adapter)
    return execute(
        other, inputs, implementation_of(call.judged, call.question.detail).exposes(call.problem)
    ).outputs


def _before_the_cut(call: DiagnosedCall, adapter: Adapter, inputs: Any) -> dict[str, Tensor]:
    cut = call.question.detail["cut"]
    return before(adapter, with_hostile_tokens(call.judged, call.problem, inputs, cut), cut)


_WAYS: Final[Mapping[str, Way]] = {
    "resume": lambda call, adapter, inputs: resumed(adapter, inputs, **call.question.detail),
    "packing": _arranged,
    "options": _under_option,
    "causality": _before_the_cut,
}
"""Call modes of the properties that do not make one plain call."""
