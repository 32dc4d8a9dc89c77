"""A sample of the kill matrix: of every stage and every class a fault, each killed under smoke
where conforming kernels pass.
"""

from __future__ import annotations

import time

import pytest

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import KINDS
from kdaverify.kills.pool import Job, rows
from kdaverify.kills.rows import FaultRow

pytestmark = pytest.mark.whole_run

SAMPLE = (
    "GA8",
    "B33",
    "CS2",
    "GA2",
    "A10",
    "SO6",
    "WU2",
    "H2",
    "H23",
    "O2",
    "S8",
    "S12",
    "SO8",
    "V11",
    "S10",
    "P9",
    "B15",
    "L8",
    "GDN-D3",
    "DN-D16",
    "CONV-C9",
    "NORM-N11",
    "LAYER-fp64",
    "attention-G1",
    "attention-K1",
    "attention-C1",
    "attention-C5",
    "attention-B3",
    "attention-B1",
    "attention-B4",
    "attention-W3",
    "SINK-scale",
    "fp8-1",
)
LIMIT = 600.0


def test_every_stage_and_every_class_is_in_it() -> None:
    sampled = [FAULTS[name] for name in SAMPLE]
    assert {fault.stage for fault in sampled} == {fault.stage for fault in FAULTS.values()}
    assert {fault.kind for fault in sampled} == set(KINDS)


@pytest.mark.rotates
@pytest.mark.parametrize("name", SAMPLE)
def test_it_is_killed(name: str) -> None:
    (row,) = rows([Job(name, "smoke")], 1, time.time() + LIMIT, lambda _: [])
    assert isinstance(row, FaultRow)
    (attempt,) = row.attempts
    assert attempt.kill is not None, attempt
    assert attempt.trouble == ()
