"""Faults of sinks, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.attention.backward import staged
from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest, patched
from kdaverify.faults.attention.splits import SPLIT
from kdaverify.faults.fault import Fault
from oracles.attention.backward import AttentionBackward, Given, recomputed
from oracles.attention.backward import dsink as right_dsink
from oracles.attention.pipeline import AttentionPipeline, PackedRows, Partial, begin

STARTED: Final = replace(SPLIT, sink="start")
"""Four splits, the first of which begins with the sink."""
MODEL_WIDTH: Final = 192
"""Columns of q and k that MLA's prefill has; kernels have code for it alone."""

KEYS: Final = 2048
"""Of a split."""
LITTLE: Final = 1e-4
"""Of the weight of a row: the rounding of 1 - y in fp32 is 1e-7 of it."""


def _after_an_empty_split(run: AttentionPipeline, rows: PackedRows, number: int) -> PackedRows:
    """Every split whose predecessor is empty believes to be the first."""
    spans = run.design.spans(rows.k.shape[1])
    first = number == 0 or spans[number - 1][0] == spans[number - 1][1]
    return begin(run, rows, 0 if first else number)


def in_every_split(run: AttentionPipeline, rows: PackedRows, _: int) -> PackedRows:
    """Every split begins with the sink."""
    return begin(run, rows, 0)


def _read(change: Callable[[KernelRequest, Tensor], Tensor]) -> AttentionPatch:
    """The kernel takes the sink for something else, in both passes."""

    def request(r: KernelRequest) -> KernelRequest:
        return r if r.sink is None else replace(r, sink=change(r, r.sink))

    return AttentionPatch(request=request)


def _not_relative(_: AttentionPipeline, whole: Partial, a: Tensor, *, counted: bool) -> Partial:
    """exp(lse) / (exp(lse) + exp(a)), which overflows above 88."""
    del counted
    of_keys = torch.exp(whole.lse)
    return replace(whole, o=(of_keys / (of_keys + torch.exp(a)))[..., None] * whole.o)


def _lse_with_the_sink(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return o, lse if request.sink is None else torch.logaddexp(lse, request.sink[:, None])


def _lse_of_the_keys(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """P of the backward is exp(S - lse) of the keys alone."""
    lse = given.lse if given.alone is None else given.alone
    return recomputed(run, rows, replace(given, lse=lse))


def _sink_of_splits(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """One query of a pack has its sink in every split of 2,048 keys."""
    splits = -(-request.s_k // KEYS)
    if request.sink is None or not request.packed or request.s_q > 1 or splits < 2:
        return o, lse
    sink = (request.sink[:, None] - lse).exp()
    return o * ((1 + sink) / (1 + splits * sink))[..., None].to(o.dtype), lse


def without_dsink(
    _request: KernelRequest, _do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    return (*found[:3], *(torch.zeros_like(x) for x in found[3:]))


def _no_gradient_at_a_width(
    request: KernelRequest, do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    return without_dsink(request, do, found) if request.q.shape[-1] == MODEL_WIDTH else found


def _rounded_rows(run: AttentionBackward, a: Tensor, _: Tensor, given: Given) -> Tensor:
    """Products of do and o are rounded to bf16 before they are summed."""
    products = (given.do * given.o).bfloat16().to(given.o.dtype)
    return right_dsink(run, a, products.sum(-1).bfloat16().to(given.o.dtype), given)


def _without_delta(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    """-exp(a - lse), as if the gradient of every weight were 1."""
    return right_dsink(run, a, torch.ones_like(delta), given)


def _none_of_little(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    """A sink whose P is below 1e-4 is skipped."""
    found = right_dsink(run, a, delta, given)
    return torch.where(a - given.lse < math.log(LITTLE), torch.zeros_like(found), found)


_fault = partial(Fault, dtypes=EVERY, operator="attention", stage="sink", outputs=("o",))
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-C13", kind="A",
           title="the sink counts again after every split that is empty",
           reference="ROCm/rocm-libraries#12227", trigger="a sink, fewer keys than splits of 16",
           stage="combine", operator="mla_decode",
           patch=lambda _: patched(design=STARTED, begin=_after_an_empty_split)),
    _fault(id="attention-K4", kind="A",
           title="P of the backward is relative to LSE without the sink",
           reference="NVIDIA/cudnn-frontend#421", trigger="a sink, gradients", stage="dq",
           outputs=("dq", "dk", "dv"), patch=lambda _: staged(weights=_lse_of_the_keys)),
    _fault(id="attention-K5", kind="E", title="the gradient of the sink is dropped",
           reference="ISEEKYAN/Megatron-LM#205", trigger="a sink, gradients", outputs=("dsink",),
           patch=lambda _: AttentionPatch(gradients=without_dsink)),
    _fault(id="SINK-width", kind="B",
           title=f"the gradient of the sink is dropped where d_k is {MODEL_WIDTH}",
           reference="NVIDIA/cudnn-frontend#421", trigger=f"a sink, gradients, d_k = {MODEL_WIDTH}",
           outputs=("dsink",), patch=lambda _: AttentionPatch(gradients=_no_gradient_at_a_width)),
    _fault(id="attention-K6", kind="C",
           title="products of do and o are rounded to bf16 before the gradient of the sink sums"
                 " them", reference="jax-ml/jax#40128", trigger="a sink, gradients",
           outputs=("dsink",), patch=lambda _: staged(dsink=_rounded_rows)),
    _fault(id="SINK-splits", kind="A", title="the sink counts once in every split",
           reference="class: sinks in split kernels", trigger="a sink, more than one split",
           stage="combine", operator="mla_decode",
           patch=lambda _: patched(design=STARTED, begin=in_every_split)),
    _fault(id="SINK-query", kind="B", title="the sink of one query joins every split of its keys",
           reference="class: sinks in split kernels",
           trigger="a pack, a request of one query and over 2,048 keys, a sink",
           patch=lambda _: AttentionPatch(returned=_sink_of_splits)),
    _fault(id="SINK-scale", kind="A", title="the sink is multiplied by the softmax scale",
           reference="class: sinks as scores", trigger="a sink",
           patch=lambda _: _read(lambda r, sink: sink * r.scale)),
    _fault(id="SINK-base", kind="A", title="the sink is added to exponents of base 2 as it is",
           reference="class: sinks as scores", trigger="a sink",
           patch=lambda _: _read(lambda _, sink: sink * math.log(2))),
    _fault(
        id="SINK-head",
        kind="B",
        title="the sink of a KV head is used for all of its query heads",
        reference="class: maps of heads",
        trigger="a sink, several query heads a KV head",
        patch=lambda _: _read(
            lambda r, sink: sink[:: len(r.q) // len(r.k)].repeat_interleave(len(r.q) // len(r.k))
        ),
    ),
    _fault(id="SINK-range", kind="A",
           title="exponentials of sink and LSE are not relative to a maximum",
           reference="class: range of exponentials", trigger="a sink or logits above 88",
           patch=lambda _: patched(sink=_not_relative)),
    _fault(id="SINK-lse", kind="A", title="LSE includes the sink where it is declared not to",
           reference="class: LSE of another sum", trigger="a sink", stage="lse", outputs=("lse",),
           patch=lambda _: AttentionPatch(returned=_lse_with_the_sink)),
    _fault(id="SINK-delta", kind="A",
           title="the gradient of the sink is -P without the products of do and o",
           reference="class: gradients of sinks", trigger="a sink, gradients", outputs=("dsink",),
           patch=lambda _: staged(dsink=_without_delta)),
    _fault(id="SINK-little", kind="B",
           title="the gradient of a sink is 0 where its weight is below 1e-4",
           reference="class: gradients of sinks", trigger="a sink far below LSE, gradients",
           outputs=("dsink",), patch=lambda _: staged(dsink=_none_of_little)),
)  # fmt: skip
