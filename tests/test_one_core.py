"""A process that judges computes in one thread and does not ask for the same memory twice."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

USING = """
import resource, torch
from kdaverify.one_core import use_one_core
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


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other libraries decide for themselves what they keep"
)
def test_freed_tensors_cost_no_page_faults() -> None:
    """Without it the same loop takes tens of thousands."""
    found = subprocess.run(
        [sys.executable, "-c", USING], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 1000
