"""Problems the adapters are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kdaverify.problems import Problem
from tests.adapters.standins import MakeProblem


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors lose by threads, and the machine has other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_problem() -> MakeProblem:
    """A benign problem of unequal sizes, with the fields given changed."""

    def build(**changes: Any) -> Problem:
        plain: dict[str, Any] = {
            "B": 2,
            "T": 21,
            "H": 3,
            "HV": 3,
            "K": 8,
            "V": 12,
            "dtype": "fp32",
            "seed": 7,
        }
        regimes: dict[str, Any] = {
            "gate": "log-sigmoid",
            "key": "random",
            "beta": "uniform",
            "state": "asymmetric",
            "value": "normal",
        }
        return Problem(**{**plain, **regimes, **changes})

    return build
