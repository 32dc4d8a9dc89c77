"""What one call of a kernel may take in a worker process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Limits:
    """The limits of one worker process.

    Args:
        seconds: wall time of one call; starting the process has a limit of its own.
        gib: memory in GiB beyond what the process takes before it is first called; what is shared
            with the harness does not count.
    Raises:
        ValueError: a limit that is not positive and finite.
    """

    seconds: float = 120.0
    gib: float = 8.0

    def __post_init__(self) -> None:
        for option, value, unit in (
            ("time-limit", self.seconds, "seconds"),
            ("memory-limit", self.gib, "GiB"),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"--{option}: wanted a positive number of {unit}, got {value:g}")


ISOLATE: Final = (
    "run kernels in a worker process (default: kernels of a device, native and interpreted ones,"
    " and any kernel that has crashed)"
)
NO_ISOLATE: Final = (
    "run kernels in the process of the tests; a crash is then a harness error, exit code 2"
)
DIAGNOSIS_SECONDS: Final = 24.0
"""For one case by itself. With 16 s two of seven planted faults had no name for lack of time."""
DIAGNOSIS_SHARE: Final = 0.25
DIAGNOSIS_LEAST: Final = 5.0
DIAGNOSIS_MOST: Final = 15.0
"""Rejecting may take 1.5 times as long as accepting, and the tests of a kernel that fails take 1.15
times as long already. With tolerances from the cache a smoke run of one format that accepts takes
15 s on two cores."""
DIAGNOSIS_DEFAULT: Final = (
    f"{DIAGNOSIS_SHARE:.0%} of what the tests took, {DIAGNOSIS_LEAST:g} to {DIAGNOSIS_MOST:g}"
)


def diagnosis_seconds(testing: float) -> float:
    """What the diagnosis may take, seconds, by what the tests took."""
    return min(max(DIAGNOSIS_SHARE * testing, DIAGNOSIS_LEAST), DIAGNOSIS_MOST)
