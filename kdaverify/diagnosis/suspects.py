"""Who is compared with a kernel: every fault that always strikes,
in the arithmetic that the kernel declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import chunk_sizes
from kdaverify.checks.options import implementation_of
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.adapter import EMBEDDED, Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault
from kdaverify.faults.hosts import host_of
from kdaverify.faults.kernel import Patch
from kdaverify.operator import DEFAULT
from kdaverify.operators.kda.mistakes.simple import SIGNATURES
from kdaverify.problems import Problem

RANDOM = "D"
"""The class of faults that strike at random: no two runs of them are alike."""


ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "channel": ("kda",),
    "head": ("gdn", "kda"),
    "none": ("delta", "gdn", "kda"),
}
"""Whose faults a delta rule may have, by its gates: every kernel of one gate is one of channels."""
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
        """The mistake in a kernel of `contract`; a recurrent one has no stages to patch, and is
        taken for the embedded chunk form.

        Args:
            contract: that of the judged kernel; kernels of functions have none but their own.
            twin: whether in another conforming kernel, of wider operands and smaller blocks.
        """
        if host_of(self.fault).gates is None:
            return host_of(self.fault).faulty(self.fault, 1.0)
        return self._embedded(self.fault, contract, twin=twin)

    def right(self, contract: Any) -> Adapter:
        """The same kernel without the mistake: who has the same outputs has no effect here."""
        if host_of(self.fault).gates is None:
            return host_of(self.fault).right(self.fault)
        return self._embedded(replace(_RIGHT, operator=self.fault.operator), contract, twin=False)

    def _embedded(self, fault: Fault, contract: Contract, *, twin: bool) -> Faulty:
        base = EMBEDDED[fault.operator].contract
        return Faulty(fault, contract=partial(_sized, contract, base, self.chunk_size, twin))


# a partial's arguments
def _sized(
    contract: Contract,
    base: Callable[[str], Contract],
    size: int,
    twin: bool,  # noqa: FBT001
    dtype: str,
) -> Contract:
    own = replace(base(dtype) if contract.form == "recurrent" else contract, chunk_size=size)
    return (
        replace(
            own,
            operands=own.accumulate,
            solve=None,
            factors=None,
            anchored=False,
            anchor="free",
            sub_block=own.sub_block // 2,
        )
        if twin
        else own
    )


def declared(question: PropertyCase, judged: Adapter) -> Any:
    """The contract of the kernel that answers."""
    tested, dtype = implementation_of(judged, question.detail), question.problem.dtype
    return (
        tested.backward_contract(dtype)
        if PROPERTIES[question.property].backward
        else tested.contract(dtype)
    )


def chunk_size(contract: Any) -> int:
    """Tokens of a chunk of a delta rule's kernel; 1 of any other."""
    return contract.chunk_size if isinstance(contract, Contract) else 1


def suspects(question: PropertyCase, judged: Adapter) -> Iterator[tuple[Suspect, ...]]:
    """All of them at the declared chunk size; then at smaller ones that the contract permits, where
    they cut the sequences elsewhere.
    """
    contract = declared(question, judged)
    known, simple = _known(question, judged), SIGNATURES if judged.op == DEFAULT else ()
    for size in _sizes(question, contract):
        yield (
            *(Suspect(fault, size, known=True) for fault in known),
            *(Suspect(fault, size, known=False) for fault in simple),
        )


def races(question: PropertyCase, judged: Adapter) -> tuple[Suspect, ...]:
    """Those that strike at random, at the declared chunk size."""
    size = next(iter(_sizes(question, declared(question, judged))))
    return tuple(
        Suspect(fault, size, known=True) for fault in _known(question, judged, random=True)
    )


def _known(question: PropertyCase, judged: Adapter, *, random: bool = False) -> list[Fault]:
    """The faults of the operators that the judged one may have the mistakes of, its own first."""
    gates = judged.domain.gates if judged.op == DEFAULT else None
    operators = [judged.op] if gates is None else ALSO[gates]
    return [
        fault
        for operator in operators
        for fault in FAULTS.values()
        if fault.operator == operator
        and (fault.kind == RANDOM) is random
        and question.problem.dtype in fault.dtypes
    ]


def _sizes(question: PropertyCase, contract: Any) -> Iterator[int]:
    if not isinstance(contract, Contract):
        yield 1
        return
    problem = question.problem
    longest = max(length for _, _, length in problem.spans) if isinstance(problem, Problem) else 0
    first, *smaller = (
        (EAGER.contract(problem.dtype).chunk_size,)
        if contract.form == "recurrent"
        else chunk_sizes(contract)
    )
    yield from (first, *(size for size in smaller if size < longest))
