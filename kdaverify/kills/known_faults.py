"""The faults of an operator that its suites are measured on, and the kernels held against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.operator import DEFAULT, CallOperator, call_operator
from kdaverify.plugin.suite_files import shipped

SURVIVORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "H11": (
            "gap: only o is returned, in 16 bits, and hides a 16-bit state over the few chunks that"
            " options are tested on (0.80 of the tolerance after 209 tokens of slow decay); it"
            " takes options over long runs (1.05 of it after 2,100 tokens)"
        ),
        "B10": (
            "below the noise: one more rounding changes dg by 2e-4 and the gradient of the state by"
            " 1.3e-3, where conforming kernels differ by 2.1e-3 and 1.5e-3; with ten chunks by"
            " 6.8e-3 and 5.4e-3, where they differ by 1.4e-2 and 5.8e-3"
        ),
    }
)
"""Why a fault survives: equivalent, below what conforming kernels differ by, or a gap with what it
would take. By id; reported only where the matrix finds the fault alive."""


class KnownFault(Protocol):
    """A fault as the kill matrix runs and lists it; `Fault` and `PlantedFault` are such."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def trigger(self) -> str: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def stage(self) -> str: ...
    @property
    def graded(self) -> bool: ...
    @property
    def strengths(self) -> tuple[float, ...]: ...
    @property
    def conforming(self) -> tuple[str, ...]:
        """The conforming kernels that a rejection of it is held against, as `--impl` names them."""
        ...

    def spec(self, strength: float = 1.0) -> str:
        """The faulty implementation, as `--impl` names it."""
        ...

    def twin(self) -> Adapter:
        """The implementation without the fault, the same in everything else."""
        ...


@dataclass(frozen=True)
class PlantedFault:
    """A fault in an implementation that comes along with its operator.

    Args:
        id, title, reference, trigger, outputs, stage: as of `Fault`.
        kernel: the faulty implementation, as `--impl` names it.
        right: the same without the fault.
        conforming: other kernels that conform by construction, as `--impl` names them.
        kind: A to F, see `faults.fault.KINDS`.
    """

    id: str
    title: str
    kernel: str
    right: str
    outputs: tuple[str, ...]
    conforming: tuple[str, ...] = ()
    stage: str = ""
    kind: str = "A"
    reference: str = "planted"
    trigger: str = "every input"
    graded: bool = False
    strengths: tuple[float, ...] = (1.0,)

    def spec(self, strength: float = 1.0) -> str:
        return self.kernel

    def twin(self) -> Adapter:
        return find(self.right)


@dataclass(frozen=True)
class FaultCatalogue:
    """What the kill matrix of an operator is made of.

    Args:
        faults: by id.
        survivors: why a fault survives, by id.
    """

    faults: Mapping[str, KnownFault]
    survivors: Mapping[str, str]


def operator_by(impl: str) -> CallOperator:
    """The operator that an implementation implements; KDA for ""."""
    return find(impl).operator if impl else call_operator(DEFAULT)


def catalogue_by(impl: str) -> FaultCatalogue:
    """The faults of that operator; every shipped one for ""."""
    return operator_by(impl).fault_catalogue() if impl else shipped_catalogue()


def shipped_catalogue(op: str = "") -> FaultCatalogue:
    """The faults of the catalogue.

    Args:
        op: whose; "" for those of every operator.
    """
    from kdaverify.faults.catalogue import FAULTS
    from kdaverify.faults.hosts import host_of

    chosen = {fault.id: fault for fault in FAULTS.values() if op in ("", host_of(fault).op)}
    return FaultCatalogue(chosen, SURVIVORS)


def suites_by(impl: str) -> list[str]:
    """The suites that test it, by property."""
    return sorted(shipped(operator_by(impl).name))
