"""The test that a kernel failed, in a form that other kernels can run too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import RULES
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.resume import row_call
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import Tolerances
from kdaverify.operator import operator_of


@dataclass(frozen=True)
class PropertyCase:
    """One property of one problem; property and detail as a verdict has them."""

    property: str
    problem: Any
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])


def shrinks(case: PropertyCase) -> bool:
    """Whether smaller problems keep the point of a case: rules about sizes make calls of their own,
    and for a smaller head a call of 954 of them, larger than that of the first case.
    """
    return PROPERTIES[case.property].shrinks and not is_about_sizes(case)


def is_about_sizes(case: PropertyCase) -> bool:
    """Whether it is a rule whose calls have sizes of their own."""
    rule = RULES.get(str(case.detail.get("rule")))
    return rule is not None and rule.once


class DiagnosisCase(Protocol):
    """A test with its tensors: runs kernels on them, and has the exact outputs."""

    def answer(self, adapter: Adapter, /) -> KernelErrors:
        """What a kernel answers; what it does wrong is its answer."""
        ...

    def tolerances(self) -> Tolerances:
        """The exact outputs, and the tolerance of conforming kernels.

        Raises:
            ContractOverflow: no conforming kernel stays finite.
            UncertifiedError: no reference value is sharp enough.
        """
        ...


def bench(question: PropertyCase, judged: Adapter) -> DiagnosisCase:
    """The test as `judged` ran it; other kernels get the same call."""
    return operator_of(question.problem).diagnosed(as_called(question, judged), judged)


def as_called(case: PropertyCase, judged: Adapter) -> PropertyCase:
    """The call itself, where a case is a row of the covering array that names one: else a kernel
    with wrong gradients was said to have outputs within tolerance, those of its forward.
    """
    if "direction" not in case.detail:
        return case
    name, detail = row_call(judged, case.problem, case.detail["direction"])
    return PropertyCase(name, case.problem, detail)
