"""Settings of every test of the harness."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums made in one order; and the workers of a parallel run do not fight for cores."""
    torch.set_num_threads(1)
