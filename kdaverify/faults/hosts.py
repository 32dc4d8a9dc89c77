"""What faults are patches of: a right kernel for each operator, and the conforming kernels that
faults of it are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.faults import gated_norm, short_conv
from kdaverify.faults.adapter import Faulty, unpatched
from kdaverify.faults.attention.adapter import planted as planted_attention
from kdaverify.faults.conforming_kernels import (
    ATTENTION,
    CONFORMING,
    CONV,
    DELTA,
    GDN,
    MERGE_STATE,
    MLA_DECODE,
    NORM,
)
from kdaverify.faults.fault import Fault, Setting


@dataclass(frozen=True)
class Host:
    """The right kernel of one operator.

    Args:
        op: the operator of its adapters.
        gates: of the problems that it takes, of a delta rule; None for other operators.
        conforming: conforming kernels, as `--impl` names them.
        faulty: (fault, strength) -> the kernel with the fault.
        right: the same kernel without it, under another name.
    """

    op: str
    gates: str | None
    conforming: tuple[str, ...]
    faulty: Callable[[Fault, float], Adapter]
    right: Callable[[Fault], Adapter]


def _delta(gates: str, conforming: tuple[str, ...]) -> Host:
    return Host("kda", gates, conforming, Faulty, unpatched)


def _function(
    op: str, adapted: Callable[[Any, Fault], Adapter], conforming: tuple[str, ...]
) -> Host:
    """The host of an operator that functions implement: a fault's patch is the wrong function."""

    def faulty(fault: Fault, strength: float) -> Adapter:
        return adapted(fault.patch(Setting(strength, torch.Generator())), fault)

    return Host(op, None, conforming, faulty, lambda fault: adapted(None, fault))


HOSTS: Final[Mapping[str, Host]] = MappingProxyType(
    {
        "kda": _delta("channel", CONFORMING),
        "gdn": _delta("head", GDN),
        "delta": _delta("none", DELTA),
        "short_conv": _function("short_conv", short_conv.planted, CONV),
        "gated_rms_norm": _function("gated_rms_norm", gated_norm.planted, NORM),
        "attention": _function("attention", planted_attention, ATTENTION),
        "mla_decode": _function("mla_decode", planted_attention, MLA_DECODE),
        "merge_state": _function("merge_state", planted_attention, MERGE_STATE),
    }
)
"""By the operator that a fault names."""


def host_of(fault: Fault) -> Host:
    """The right kernel that a fault is a patch of."""
    return HOSTS[fault.operator]
