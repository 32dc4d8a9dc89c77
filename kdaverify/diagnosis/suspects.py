"""Who is compared with a kernel: every fault that always strikes, in the arithmetic that the kernel declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.family import chunk_sizes
from kdaverify.checks.options import asked_of
from kdaverify.diagnosis.question import Question
from kdaverify.diagnosis.signatures import SIGNATURES
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault

RANDOM = "D"
"""The class of faults that strike at random: no two runs of them are alike."""


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

    def adapter(self, contract: Contract) -> Faulty:
        """The mistake in a kernel of `contract`; a recurrent one has no stages to patch, and is taken for the embedded chunk form."""
        return Faulty(self.fault, contract=partial(_sized, contract, self.chunk_size))


def _sized(contract: Contract, size: int, dtype: str) -> Contract:
    return replace(EAGER.contract(dtype) if contract.form == "recurrent" else contract, chunk_size=size)


def suspects(question: Question, judged: Adapter) -> Iterator[tuple[Suspect, ...]]:
    """All of them at the declared chunk size; then at the smaller ones that are legal too."""
    dtype = question.problem.dtype
    contract = asked_of(judged, question.detail).contract(dtype)
    known = [fault for fault in FAULTS.values() if fault.kind != RANDOM and dtype in fault.dtypes]
    for size in (64,) if contract.form == "recurrent" else chunk_sizes(contract):
        yield (*(Suspect(fault, size, known=True) for fault in known), *(Suspect(fault, size, known=False) for fault in SIGNATURES))
