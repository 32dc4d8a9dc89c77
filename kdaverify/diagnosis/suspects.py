"""Who is compared with a kernel: every fault that always strikes,
in the arithmetic that the kernel declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import chunk_sizes
from kdaverify.checks.options import asked_of
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.signatures import SIGNATURES
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault
from kdaverify.faults.kernel import Patch
from kdaverify.problems import Problem

RANDOM = "D"
"""The class of faults that strike at random: no two runs of them are alike."""


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

    def adapter(self, contract: Contract, *, twin: bool = False) -> Faulty:
        """The mistake in a kernel of `contract`; a recurrent one has no stages to patch, and is
        taken for the embedded chunk form.

        Args:
            twin: whether in another conforming kernel, of wider operands and smaller blocks.
        """
        return Faulty(self.fault, contract=partial(_sized, contract, self.chunk_size, twin))


# a partial's argument
def _sized(contract: Contract, size: int, twin: bool, dtype: str) -> Contract:  # noqa: FBT001
    own = replace(
        EAGER.contract(dtype) if contract.form == "recurrent" else contract, chunk_size=size
    )
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


def right(chunk_size: int) -> Suspect:
    """The same kernel without a mistake: a suspect with the same outputs has no effect here."""
    return Suspect(_RIGHT, chunk_size, known=False)


def declared(question: PropertyCase, judged: Adapter) -> Contract:
    """The contract of the kernel that answers."""
    asked, dtype = asked_of(judged, question.detail), question.problem.dtype
    return (
        asked.backward_contract(dtype)
        if PROPERTIES[question.property].backward
        else asked.contract(dtype)
    )


def suspects(question: PropertyCase, judged: Adapter) -> Iterator[tuple[Suspect, ...]]:
    """All of them at the declared chunk size; then at smaller ones that the contract permits, where
    they cut the sequences elsewhere.
    """
    problem, dtype, contract = question.problem, question.problem.dtype, declared(question, judged)
    known = [fault for fault in FAULTS.values() if fault.kind != RANDOM and dtype in fault.dtypes]
    longest = max(length for _, _, length in problem.spans) if isinstance(problem, Problem) else 0
    first, *smaller = (
        (EAGER.contract(dtype).chunk_size,)
        if contract.form == "recurrent"
        else chunk_sizes(contract)
    )
    for size in (first, *(size for size in smaller if size < longest)):
        yield (
            *(Suspect(fault, size, known=True) for fault in known),
            *(Suspect(fault, size, known=False) for fault in SIGNATURES),
        )
