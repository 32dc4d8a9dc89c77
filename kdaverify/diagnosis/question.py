"""What was asked of a kernel, in a form that other kernels can be asked too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdaverify.adapters.base import Adapter
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import Yardstick
from kdaverify.operator import operator_of


@dataclass(frozen=True)
class PropertyCase:
    """One property of one problem; property and detail as a verdict has them."""

    property: str
    problem: Any
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])


class DiagnosisCase(Protocol):
    """A question with its tensors: whom it is asked, and what is right."""

    def answer(self, adapter: Adapter, /) -> KernelErrors:
        """What a kernel answers; what it does wrong is its answer."""
        ...

    def yardstick(self) -> Yardstick:
        """What is right, and how much legal kernels may miss it by.

        Raises:
            ContractOverflow: no legal kernel stays finite.
            UncertifiedError: no reference value is sharp enough.
        """
        ...


def bench(question: PropertyCase, judged: Adapter) -> DiagnosisCase:
    """The question as `judged` was asked it; others answer the call that it received."""
    return operator_of(question.problem).diagnosed(question, judged)
