"""Kernels that are right until their caller does something: edits an output before the backward,
takes a second loss, scales it, hands over offsets that are a column or a fused projection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_backwards import Derived, derived_from
from kdaverify.faults.planted.broken_calls import Outputs, Patch, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

HASHED: Final = 31
SMALLEST: Final = 2.0**-24
"""Of fp16."""


def kept_output(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The backward of o adds what the caller has changed of it since."""
    o, final = right(x)
    own, kept = o.detach().clone(), list[Tensor]()
    o = with_gradient(lambda do: do + (kept[0] - own).to(do.dtype), o)
    kept.append(o.detach())
    return o, final


def loss_of_the_first_backward(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The backward of o keeps the first gradient that comes in."""
    o, final = right(x)
    first = dict[str, Tensor]()
    return with_gradient(lambda do: first.setdefault("do", do), o), final


def in_the_range_of_fp16(do: Tensor) -> Tensor:
    """What is smaller than fp16's smallest number is 0."""
    return do.masked_fill(do.abs() < SMALLEST, 0.0)


def offsets_as_they_lie(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Offsets by their address, within the tokens there are."""
    if x.cu_seqlens is None:
        return right(x)
    there = x.cu_seqlens.as_strided(x.cu_seqlens.shape, (1,)).clamp(0, x.T)
    return right(replace(x, cu_seqlens=there.cummax(0).values))


def offsets_by(key: Callable[[list[int]], int]) -> Patch:
    """Offsets are kept by a number that is made of them, and how many they are."""

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        if x.cu_seqlens is None:
            return right(x)
        offsets = x.cu_seqlens.tolist()
        there = kept.setdefault((key(offsets), len(offsets), x.T), x.cu_seqlens.clone())
        return right(replace(x, cu_seqlens=there))

    return patch


def _hashed(offsets: list[int]) -> int:
    return reduce(lambda total, offset: HASHED * total + offset, offsets)


def _between_its_ends(offsets: list[int]) -> int:
    """Of packs with the same ends the same number."""
    lengths = [b - a for a, b in pairwise(offsets)]
    return hash((max(lengths), *lengths[:1], *offsets[-2:]))


def three_runs_of_heads(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """q, k and v of one storage, whose rows they fill, are read as one run of heads each."""
    tensors = (x.q, x.k, x.v)
    row = sum(y.shape[2:].numel() for y in tensors)
    one = len({y.untyped_storage().data_ptr() for y in tensors}) == 1
    if not one or {y.stride(1) for y in tensors} != {row} or x.q.shape != x.v.shape:
        return right(x)
    first, strides = x.q.storage_offset(), (*x.q.stride()[:2], x.q.shape[3], 1)
    q, k, v = (
        x.q.as_strided(x.q.shape, strides, first + n * x.q.shape[2:].numel()) for n in range(3)
    )
    return right(replace(x, q=q, k=k, v=v))


def left_out_by_a_sum(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """A loss on the final state alone is left out where its gradient sums to 0."""
    dS = given.d_final_state
    if dS is None or float(dS.sum()) != 0 or (given.do is not None and bool(given.do.any())):
        return EAGER.gradients(x, given)
    return EAGER.gradients(x, Cotangents(given.do, torch.zeros_like(dS)))


def ones_of_stride_0(do: Tensor) -> Tensor:
    """The incoming gradient of a sum is 1, and one of stride 0 is that of a sum."""
    return do if any(do.stride()) else torch.ones_like(do)


def one_factor_into_fp16(do: Tensor) -> Tensor:
    """All incoming gradients are brought into the range of fp16 by one factor: what is smaller than
    the largest by more than that range is 0.
    """
    largest = do[do.isfinite()].abs().amax() if do.numel() else 0.0
    return do.masked_fill(do.abs() < largest * SMALLEST, 0.0)


def overflows_left_out(do: Tensor) -> Tensor:
    """Incoming gradients that are not finite are 0."""
    return do.masked_fill(~do.isfinite(), 0.0)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "o is kept for the backward where autograd does not see it": lambda: port(kept_output),
    "a second backward has the loss of the first": lambda: port(loss_of_the_first_backward),
    "incoming gradients under the range of fp16 are 0": lambda: Derived(
        derived_from(in_the_range_of_fp16)
    ),
    "offsets are read as if they were dense": lambda: port(offsets_as_they_lie),
    "one projection is read as runs of heads": lambda: port(three_runs_of_heads),
    "a gradient of the final state that sums to 0 is left out": lambda: Derived(left_out_by_a_sum),
    "offsets are kept by their sum": lambda: port(offsets_by(sum)),
    "offsets are kept by their polynomial hash": lambda: port(offsets_by(_hashed)),
    "incoming gradients that are infinite are 0": lambda: Derived(derived_from(overflows_left_out)),
    "offsets are kept by their ends, sum and number": lambda: port(offsets_by(_between_its_ends)),
    "incoming gradients of stride 0 are ones": lambda: Derived(derived_from(ones_of_stride_0)),
    "incoming gradients go through fp16 by one factor": lambda: Derived(
        derived_from(one_factor_into_fp16)
    ),
}
"""By what is wrong."""
