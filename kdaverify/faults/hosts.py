"""What faults are patches of: right kernels by operator, and conforming ones beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import Contract
from kdaverify.faults import gated_norm, layer, layer_cache, layer_growth, short_conv
from kdaverify.faults.adapter import EMBEDDED, Faulty, unpatched
from kdaverify.faults.attention.adapter import planted as planted_attention
from kdaverify.faults.attention.list_kernel import planted as planted_lists
from kdaverify.faults.conforming_kernels import (
    ATTENTION,
    CONFORMING,
    CONV,
    DELTA,
    GDN,
    LAYER,
    MERGE_STATE,
    MLA_DECODE,
    NORM,
    SPARSE,
    SPARSE_FP8,
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
        embedded: (fault, contract, chunk size, twin) -> the kernel with the fault, in the
            arithmetic of a kernel of that contract; a twin is another conforming kernel of it, of
            wider operands and smaller blocks.
    """

    op: str
    gates: str | None
    conforming: tuple[str, ...]
    faulty: Callable[[Fault, float], Adapter]
    right: Callable[[Fault], Adapter]
    embedded: Callable[[Fault, Any, int, bool], Adapter]


def _delta(gates: str, conforming: tuple[str, ...]) -> Host:
    return Host("kda", gates, conforming, Faulty, unpatched, _embedded)


def _embedded(
    fault: Fault,
    contract: Contract,
    size: int,
    twin: bool,  # noqa: FBT001 # a Host's
) -> Faulty:
    return Faulty(
        fault, contract=lambda dtype: _arithmetic(fault.operator, contract, dtype, size, twin=twin)
    )


def _arithmetic(
    operator: str, contract: Contract, dtype: str, size: int, *, twin: bool
) -> Contract:
    """A recurrent kernel has no stages to patch, and is taken for the embedded chunk form."""
    recurrent = contract.form == "recurrent"
    chunked = EMBEDDED[operator].contract(dtype) if recurrent else contract
    own = replace(chunked, chunk_size=size)
    if not twin:
        return own
    return replace(
        own,
        operands=own.accumulate,
        solve=None,
        factors=None,
        anchored=False,
        anchor="free",
        sub_block=own.sub_block // 2,
    )


def _function(
    op: str, adapted: Callable[[Any, Fault], Adapter], conforming: tuple[str, ...]
) -> Host:
    """The host of an operator that functions implement: a fault's patch is the wrong function."""

    def faulty(fault: Fault, strength: float) -> Adapter:
        return adapted(fault.patch(Setting(strength, torch.Generator())), fault)

    return Host(
        op,
        None,
        conforming,
        faulty,
        right=lambda fault: adapted(None, fault),
        embedded=lambda fault, _contract, _size, _twin: faulty(fault, 1.0),
    )


def _planted_layer(found: Any, fault: Fault) -> Adapter:
    """A layer with a fault, or the one that a fault is a patch of: with a cache, one that grows, or
    none.
    """
    patched = fault.patch(Setting(1.0, torch.Generator())) if found is None else found
    if isinstance(patched, layer_cache.CachedLayer):
        own = layer_cache.RIGHT if found is None else patched
        return layer_cache.adapted(own, f"fault:{fault.id}", fault.dtypes)
    if isinstance(patched, layer_growth.GrowingLayer):
        held = layer_growth.RIGHT if found is None else patched
        return layer_growth.adapted(held, f"fault:{fault.id}", fault.dtypes)
    return layer.planted(found, fault)


HOSTS: Final[Mapping[str, Host]] = MappingProxyType(
    {
        "kda": _delta("channel", CONFORMING),
        "gdn": _delta("head", GDN),
        "delta": _delta("none", DELTA),
        "short_conv": _function("short_conv", short_conv.planted, CONV),
        "gated_rms_norm": _function("gated_rms_norm", gated_norm.planted, NORM),
        "layer": _function("layer", _planted_layer, LAYER),
        "attention": _function("attention", planted_attention, ATTENTION),
        "mla_decode": _function("mla_decode", planted_attention, MLA_DECODE),
        "sparse_attention": _function("sparse_attention", planted_lists, SPARSE),
        "sparse_fp8": _function("sparse_attention", planted_lists, SPARSE_FP8),
        "merge_state": _function("merge_state", planted_attention, MERGE_STATE),
    }
)
"""By the operator that a fault names."""


def host_of(fault: Fault) -> Host:
    """The right kernel that a fault is a patch of."""
    return HOSTS[fault.operator]
