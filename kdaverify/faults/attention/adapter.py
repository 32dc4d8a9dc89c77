"""Attention kernels with a fault, and without, as implementations under test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.operator_kernel import FunctionAdapter, shipped
from kdaverify.faults.attention.kernel import EVERY, AttentionKernel, AttentionPatch
from kdaverify.faults.fault import Fault
from oracles.attention.design import OnlineDesign

OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {"attention": {"lse_gradient": "given"}, "mla_decode": {}, "merge_state": {}}
)
"""What the kernel declares of itself, by operator."""
OTHERWISE: Final = OnlineDesign(
    block=32, direction="backward", splits=3, cut="blocks", merge="tree", base="e", sink="start"
)
"""Everything that a contract leaves open, chosen the other way."""


def planted(patch: AttentionPatch | None, fault: Fault) -> FunctionAdapter:
    """The implementation with a fault; without one, the right one that it is held against."""
    kernel = AttentionKernel() if patch is None else AttentionKernel(patch)
    function = getattr(kernel, fault.operator)
    return adapted(function, fault.operator, f"fault:{fault.id}", dtypes=fault.dtypes)


def adapted(
    function: Callable[..., Any],
    op: str,
    name: str,
    *,
    dtypes: tuple[str, ...] = EVERY,
    **more: Any,
) -> FunctionAdapter:
    """A function of the kernel as an adapter."""
    return shipped(op, function, name, dtypes=dtypes, **OPTIONS[op], **more)


def in_base_two(op: str) -> FunctionAdapter:
    """A conforming kernel whose LSE is to base 2 and of keys and sink, +inf in rows without."""
    kernel = AttentionKernel(AttentionPatch(design=OTHERWISE, lse_includes_sink=True))
    function = getattr(kernel, op)
    counted: dict[str, Any] = {} if op == "merge_state" else {"lse_includes_sink": "yes"}

    @wraps(function)
    def converted(*tensors: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        o, lse = function(*tensors, **how)
        return o, torch.where(torch.isneginf(lse), torch.inf, lse / math.log(2))

    return adapted(converted, op, f"{op} in base 2", lse="2", empty_lse="+inf", **counted)


ATTENTION, MLA_DECODE, MERGE_STATE = (
    adapted(getattr(AttentionKernel(), op), op, f"conforming {op}") for op in OPTIONS
)
"""The kernel without a fault: whatever rejects one of these is a false alarm."""
