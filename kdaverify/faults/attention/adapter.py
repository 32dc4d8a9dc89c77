"""Attention kernels with a fault, and without, as implementations under test."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import FunctionAdapter, operator_kernel
from kdaverify.faults.attention.catalogue import ATTENTION_FAULTS, NOT_RECREATED, attention_kernel
from kdaverify.faults.attention.fault import EVERY
from kdaverify.faults.attention.kernel import AttentionKernel

PREFIX: Final = "attention-"
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {"attention": {"lse_gradient": "given"}, "mla_decode": {}, "merge_state": {}}
)
"""What the kernel declares of itself, by operator."""


def faulty_attention(name: str) -> FunctionAdapter:
    """The implementation `fault:attention-ID`.

    Args:
        name: an id of the catalogue.
    Raises:
        AdapterError: there is none.
    """
    if name in NOT_RECREATED:
        raise AdapterError(f"fault:{PREFIX}{name}: not re-created: {NOT_RECREATED[name]}")
    if name not in ATTENTION_FAULTS:
        known = ", ".join(ATTENTION_FAULTS)
        raise AdapterError(f"no fault of attention named {name!r}; wanted one of {known}")
    fault = ATTENTION_FAULTS[name]
    return adapted(attention_kernel(fault), fault.op, f"fault:{PREFIX}{name}", fault.dtypes)


def adapted(
    kernel: AttentionKernel, op: str, name: str, dtypes: tuple[str, ...] = EVERY
) -> FunctionAdapter:
    """One of the kernel's functions as an adapter."""
    options = {"name": name, "dtypes": dtypes, **OPTIONS[op]}
    return operator_kernel(op, getattr(kernel, op), options, FRAMEWORKS["torch"])


ATTENTION, MLA_DECODE, MERGE_STATE = (
    adapted(AttentionKernel(), op, f"conforming {op}") for op in OPTIONS
)
"""The kernel without a fault: whatever rejects one of these is a false alarm."""
