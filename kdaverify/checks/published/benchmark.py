"""The run that others' standards hold a kernel's error against; ours never do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

EMULATED: Final = "the baseline reference kernel"


@dataclass(frozen=True)
class Benchmark:
    """One run.

    Args:
        name: whose it is, or why there is none.
        outputs: what it returned, by name.
    """

    name: str
    outputs: Mapping[str, Tensor]
