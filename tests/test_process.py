"""A process that judges computes in one thread, and neither allocates the same memory twice nor
searches its modules for garbage.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

USING = """
import resource, torch
from kdaverify.process import use_one_core
use_one_core()
assert torch.get_num_threads() == 1
def churn():
    for _ in range(10):
        tensors = [torch.zeros(1 << 20, dtype=torch.float64) for _ in range(8)]
        del tensors
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

SEARCHED = """
import gc, torch
from kdaverify.process import use_one_core
use_one_core()
kept, searched = gc.get_freeze_count(), len(gc.get_objects())
cycle = []
cycle.append(cycle)
del cycle
print(kept, searched, gc.collect())
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries decide for themselves what they keep"
)
def test_freed_tensors_cost_no_page_faults() -> None:
    """Without it the same loop takes tens of thousands."""
    found = subprocess.run(
        [sys.executable, "-c", USING], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 1000


def test_modules_are_not_searched_for_garbage() -> None:
    """Garbage made later is still found."""
    said = subprocess.run(
        [sys.executable, "-c", SEARCHED], capture_output=True, text=True, check=True
    ).stdout
    kept, searched, found = map(int, said.split())
    assert kept > 10 * searched
    assert found >= 1
