"""Faults of attention lie in stages that the operator names."""

from __future__ import annotations

from typing import Final

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.hosts import host_of
from kdaverify.operator import operator_named
from kdaverify.operators.attention.stages import STAGES

OF_ATTENTION: Final = [
    fault for fault in FAULTS.values() if operator_named(host_of(fault).op).hidden_stages == STAGES
]


def test_every_fault_has_a_stage_and_every_stage_a_fault() -> None:
    assert len(OF_ATTENTION) == 118
    assert {fault.stage for fault in OF_ATTENTION} == {*STAGES}
