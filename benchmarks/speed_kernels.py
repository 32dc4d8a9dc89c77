"""A right kernel and a wrong one in a single format, as `benchmarks.speed` compares them."""

from __future__ import annotations

from typing import Final

from kdaverify.adapters.eager import Eager
from kdaverify.adapters.registry import find
from kdaverify.faults.adapter import Faulty

FAULT: Final = "fault:H1"


def _in_one_format(spec: str, dtype: str) -> Faulty:
    found = find(spec)
    assert isinstance(found, Faulty)
    found.dtypes = (dtype,)
    return found


RIGHT: Final = Eager("eager-bf16", {"bf16": "eager"})
WRONG: Final = _in_one_format(FAULT, "bf16")
