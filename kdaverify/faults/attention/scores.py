"""Faults of the scores, their scale, and the online softmax."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Paged,
    gathered,
    patched,
)
from kdaverify.faults.fault import Fault
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline

SENTINEL: Final = -5e4
"""In units of the exponent of 2."""
WRAP: Final = 128
"""Keys after which an emulated index wraps, instead of 32768."""
FROM_THE_RIGHT: Final = OnlineDesign(block=16, direction="backward")


def scaled(factor: float) -> AttentionPatch:
    """The softmax scale off by a factor."""
    return AttentionPatch(request=lambda r: replace(r, scale=r.scale * factor))


def _inverted() -> AttentionPatch:
    return AttentionPatch(request=lambda r: replace(r, scale=1 / r.scale if r.scale else 0.0))


def _sentinel() -> AttentionPatch:
    """Masked scores, and the first maximum, are a finite number."""

    def mask(run: AttentionPipeline, S: Tensor, visible: Tensor) -> Tensor:
        return S.masked_fill(~visible, SENTINEL / run.exponent_scale)

    def maximum(run: AttentionPipeline, m: Tensor, S: Tensor) -> Tensor:
        return torch.maximum(m.clamp(min=SENTINEL / run.exponent_scale), S.amax(-1))

    return patched(mask=mask, maximum=maximum)


def _unguarded(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    """exp(-inf - -inf) is NaN."""
    return torch.exp2((S - m[..., None]) * run.exponent_scale)


def unguarded_from_negative_infinity(design: OnlineDesign) -> AttentionPatch:
    """A running maximum that starts at -inf, and no guard."""

    def rescale(run: AttentionPipeline, old: Tensor, new: Tensor) -> Tensor:
        first = old == -torch.inf
        found = torch.exp2((old - new) * run.exponent_scale)
        return torch.where(first & (new != -torch.inf), torch.zeros_like(found), found)

    return patched(design=design, weights=_unguarded, rescale=rescale)


def _wrapped(paged: Paged, request: int) -> Tensor:
    found = gathered(paged, request)
    return found[torch.arange(len(found)) % WRAP]


def _plain_mean() -> AttentionPatch:
    def returned(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if request.causal or not request.s_k:
            return o, lse
        group = len(request.q) // len(request.k)
        mean = request.v.to(o.dtype).mean(1, keepdim=True).repeat_interleave(group, 0)
        return mean.expand_as(o).contiguous(), lse

    return AttentionPatch(returned=returned)


_fault = partial(Fault, dtypes=EVERY, stage="scores")
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-S1", kind="A", title="scale from the hidden size over the heads",
           reference="NVIDIA/Megatron-LM#1501", operator="mla_decode",
           trigger="any call whose softmax is not flat", outputs=("o", "lse"),
           patch=lambda _: scaled(2.2)),
    _fault(id="attention-S2", kind="A", title="YaRN's factor squared from the wrong of two mscales",
           reference="NVIDIA/Megatron-LM#1429", operator="mla_decode",
           trigger="any call whose softmax is not flat", outputs=("o", "lse"),
           patch=lambda _: scaled(1.27)),
    _fault(id="attention-S3", kind="A", title="scale inverted",
           reference="AI-Hypercomputer/maxtext#1370", operator="attention", trigger="any call",
           outputs=("o", "lse"), patch=lambda _: _inverted()),
    _fault(id="attention-S4", kind="A",
           title="a finite number stands for a masked score and for the first maximum",
           reference="flashinfer-ai/flashinfer#4451", operator="mla_decode",
           trigger="all logits of a row below -5e4 ln 2, or a row without keys",
           outputs=("o", "lse"), patch=lambda _: _sentinel()),
    _fault(id="attention-S5", stage="partial", kind="A",
           title="the maximum starts at -inf without a guard", reference="ggml-org/llama.cpp#12776",
           operator="attention", trigger="the first block that a row reads is masked throughout",
           outputs=("o", "lse"), patch=lambda _: unguarded_from_negative_infinity(FROM_THE_RIGHT)),
    _fault(id="attention-S6", stage="partial", kind="A",
           title="the same in decode: the block that is read first has no visible key",
           reference="vllm-project/vllm#48366", operator="mla_decode",
           trigger="several causal queries, whose last block of 16 has fewer keys than queries",
           outputs=("o", "lse"), patch=lambda _: unguarded_from_negative_infinity(FROM_THE_RIGHT)),
    _fault(id="attention-S7", stage="gather", kind="F",
           title="the index of a key wraps (emulated: at 128 instead of 32768)",
           reference="facebookresearch/xformers#719, ml-explore/mlx#3360", operator="mla_decode",
           trigger="more than 128 keys", outputs=("o", "lse"),
           patch=lambda _: AttentionPatch(gather=_wrapped)),
    _fault(id="attention-S8", stage="partial", kind="A",
           title="the plain mean of V where there is no mask",
           reference="vllm-project/vllm-ascend#13699", operator="attention", trigger="causal off",
           outputs=("o",), patch=lambda _: _plain_mean()),
)  # fmt: skip
"""In the order of the survey."""
