"""The benchmark that leaves the file of a stage out: its processes know no fault of that stage,
which are kernels like any other.
"""

from __future__ import annotations

import subprocess
import sys

from kdaverify.faults import solve
from kdaverify.faults.catalogue import FAULTS
from tests.rows import ROOT

OUT = """
from benchmarks.held_out import taken_out
held = taken_out(("kdaverify.faults.solve",))
from kdaverify.faults.catalogue import FAULTS
from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.registry import find
print(*sorted(held))
print(len(FAULTS), [fault.id for fault in FAULTS.values() if fault.stage == "solve"])
try:
    find("fault:" + sorted(held)[0])
except AdapterError as error:
    print(error)
"""


def test_a_stage_that_is_taken_out_is_not_known() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=ROOT,
    )
    held, known, said = done.stdout.splitlines()
    assert held.split() == sorted(fault.id for fault in solve.FAULTS)
    assert known == f"{len(FAULTS) - len(solve.FAULTS)} []"
    assert said.startswith("no fault named")
