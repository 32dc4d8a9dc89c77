"""Every attention fault by id, and those that are not re-created."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from kdaverify.faults.attention import backward, masks, pages, scores, splits, wrapper
from kdaverify.faults.attention.fault import AttentionFault
from kdaverify.faults.attention.kernel import AttentionKernel

MODULES: Final = (scores, masks, pages, splits, backward, wrapper)
ATTENTION_FAULTS: Final = MappingProxyType(
    {fault.id: fault for module in MODULES for fault in module.FAULTS}
)
"""The catalogue."""
NO_SINK: Final = "no operator takes a sink"
NO_QUANTISED_CACHE: Final = "mla_decode takes no quantised cache and no scales of one"
NOT_RECREATED: Final = MappingProxyType(
    {
        "C13": NO_SINK,
        **{f"Q{n}": NO_QUANTISED_CACHE for n in range(1, 10)},
        **dict.fromkeys(("K4", "K5", "K6"), NO_SINK),
    }
)
"""Of the 83 of the survey, and why."""


def attention_kernel(fault: AttentionFault | None = None) -> AttentionKernel:
    """A kernel with a fault, or the conforming one."""
    return AttentionKernel() if fault is None else AttentionKernel(fault.make())
