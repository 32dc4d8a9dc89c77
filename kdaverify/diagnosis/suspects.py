"""What is compared with a kernel: every permanent fault, in its declared arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.forward import implementation_of
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault
from kdaverify.faults.hosts import host_of
from kdaverify.faults.kernel import Patch

_RIGHT: Final = Fault(
    id="right",
    title="nothing",
    reference="",
    kind="A",
    trigger="",
    outputs=(),
    patch=lambda _: Patch(),
    stage="call",
)


@dataclass(frozen=True)
class Suspect:
    """A known mistake.

    Args:
        fault: what it is.
        chunk_size: of the kernel it is in.
        known: whether it is of the catalogue; else a signature.
    """

    fault: Fault
    chunk_size: int
    known: bool

    def __str__(self) -> str:
        return f"{self.fault.id}: {self.fault.title}"

    def adapter(self, contract: Any, *, twin: bool = False) -> Adapter:
        """The mistake in a kernel of `contract`.

        Args:
            contract: that of the judged kernel; kernels of functions have none but their own.
            twin: whether in another conforming kernel, of wider operands and smaller blocks.
        """
        return host_of(self.fault).embedded(self.fault, contract, self.chunk_size, twin)

    def right(self, contract: Any) -> Adapter:
        """The same kernel without the mistake: who has the same outputs has no effect here."""
        host = host_of(self.fault)
        if host.gates is None:
            return host.right(self.fault)
        right = replace(_RIGHT, operator=self.fault.operator)
        return replace(self, fault=right).adapter(contract)


def declared(question: PropertyCase, judged: Adapter) -> Any:
    """The contract of the kernel that answers."""
    tested, dtype = implementation_of(judged, question.detail), question.problem.dtype
    if PROPERTIES[question.property].backward:
        return tested.backward_contract(dtype)
    return tested.contract(dtype)


def suspects(question: PropertyCase, judged: Adapter) -> Iterator[tuple[Suspect, ...]]:
    """All at the declared chunk size; then at permitted smaller ones that cut otherwise."""
    known, simple = _known(question, judged), judged.operator.simple_mistakes()
    for size in _sizes(question, judged):
        yield (
            *(Suspect(fault, size, known=True) for fault in known),
            *(Suspect(fault, size, known=False) for fault in simple),
        )


def races(question: PropertyCase, judged: Adapter) -> tuple[Suspect, ...]:
    """Those that strike at random, at the declared chunk size."""
    size = next(iter(_sizes(question, judged)))
    return tuple(
        Suspect(fault, size, known=True) for fault in _known(question, judged, random=True)
    )


def _known(question: PropertyCase, judged: Adapter, *, random: bool = False) -> list[Fault]:
    """The faults of the operators that the judged one may have the mistakes of, its own first."""
    return [
        fault
        for operator in judged.operator.related(judged)
        for fault in FAULTS.values()
        if fault.operator == operator
        and fault.random is random
        and question.problem.dtype in fault.dtypes
    ]


def _sizes(question: PropertyCase, judged: Adapter) -> Sequence[int]:
    return judged.operator.chunk_sizes(question.problem, declared(question, judged))
