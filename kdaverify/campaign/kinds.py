"""Failures of one kind together: the same stage, the same way, probably one fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kdaverify.diagnosis.words import names_of
from kdaverify.operator import cost_of
from kdaverify.verdicts.verdict import Verdict

KindKey: TypeAlias = tuple[str, ...]


def kind_of(verdict: Verdict) -> KindKey:
    """By its stage where there is one, else by what was tested and which output is wrong."""
    known = (verdict.stage or "",) if verdict.names_stage() else (verdict.property, verdict.output)
    return verdict.implementation, verdict.status.value, *known


@dataclass
class FailureKind:
    """Failures of one kind.

    Args:
        representative: the least expensive to judge, of equals the one with the lowest number.
        verdicts: how many there are.
        properties, dtypes: what they struck.
        smaller: the representative, made smaller; None where it could not be, or was not tried.
        diagnosis: the known faults that match, or that none does; "" where it was not tested.
    """

    representative: Verdict
    verdicts: int = 0
    properties: set[str] = field(default_factory=set[str])
    dtypes: set[str] = field(default_factory=set[str])
    smaller: Verdict | None = None
    diagnosis: str = ""

    def take(self, verdict: Verdict) -> None:
        self.verdicts += 1
        self.properties.add(verdict.property)
        self.dtypes.add(verdict.dtype)
        self.representative = min(self.representative, verdict, key=_size)

    def named(self) -> KindKey | None:
        """What failures that look like the same known faults agree in; None where none fits."""
        faults = names_of(self.diagnosis)
        return (self.representative.implementation, *faults) if faults else None

    def join(self, other: FailureKind) -> FailureKind:
        """Both as one, shown by that of which the representative is the less expensive."""
        kept, left = (
            (self, other)
            if _size(self.representative) <= _size(other.representative)
            else (other, self)
        )
        both = self.verdicts + other.verdicts
        return replace(
            kept,
            verdicts=both,
            properties=kept.properties | left.properties,
            dtypes=kept.dtypes | left.dtypes,
        )

    @property
    def shown(self) -> Verdict:
        return self.smaller or self.representative


def _size(verdict: Verdict) -> tuple[bool, float, int, str, str]:
    """Random ones first: only these can be made smaller."""
    cost = cost_of(verdict.problem)
    return verdict.number is None, cost, verdict.number or 0, verdict.case, verdict.output
