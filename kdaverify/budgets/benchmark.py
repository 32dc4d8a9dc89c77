"""The benchmark of a problem: what a plain legal kernel of the same precision makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Benchmark:
    """One run that others' standards hold a kernel's error against; ours never do.

    Args:
        name: whose run it is.
        outputs: what it returned, by name.
    """

    name: str
    outputs: Mapping[str, Tensor]


def emulated(member: str, outputs: Mapping[str, Tensor]) -> Benchmark:
    """The run of a member of the family: the first one, which sums as the tensor library does, unless that overflowed."""
    return Benchmark(f"emulated: {member}", outputs)
