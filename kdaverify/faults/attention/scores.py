"""Faults of the scores, their scale, and the online softmax."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.fault import AttentionFault
from kdaverify.faults.attention.kernel import AttentionPatch, Paged, Request, gathered, patched
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import Pipeline

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

    def mask(run: Pipeline, S: Tensor, visible: Tensor) -> Tensor:
        return S.masked_fill(~visible, SENTINEL / run.exponent_scale)

    def maximum(run: Pipeline, m: Tensor, S: Tensor) -> Tensor:
        return torch.maximum(m.clamp(min=SENTINEL / run.exponent_scale), S.amax(-1))

    return patched(mask=mask, maximum=maximum)


def _unguarded(run: Pipeline, S: Tensor, m: Tensor) -> Tensor:
    """exp(-inf - -inf) is NaN."""
    return torch.exp2((S - m[..., None]) * run.exponent_scale)


def _unguarded_from_negative_infinity(design: OnlineDesign) -> AttentionPatch:
    def rescale(run: Pipeline, old: Tensor, new: Tensor) -> Tensor:
        first = old == -torch.inf
        found = torch.exp2((old - new) * run.exponent_scale)
        return torch.where(first & (new != -torch.inf), torch.zeros_like(found), found)

    return patched(design=design, weights=_unguarded, rescale=rescale)


def _wrapped(paged: Paged, request: int) -> Tensor:
    found = gathered(paged, request)
    return found[torch.arange(len(found)) % WRAP]


def _plain_mean() -> AttentionPatch:
    def returned(request: Request, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        if request.causal or not request.s_k:
            return o, lse
        group = len(request.q) // len(request.k)
        mean = request.v.to(o.dtype).mean(1, keepdim=True).repeat_interleave(group, 0)
        return mean.expand_as(o).contiguous(), lse

    return AttentionPatch(returned=returned)


_fault: Any = partial(AttentionFault, stage="scores")
FAULTS: Final[tuple[AttentionFault, ...]] = (
    _fault(
        id="S1",
        title="scale from the hidden size over the heads",
        reference="NVIDIA/Megatron-LM#1501",
        op="mla_decode",
        trigger="any call whose softmax is not flat",
        outputs=("o", "lse"),
        make=lambda: scaled(2.2),
    ),
    _fault(
        id="S2",
        title="YaRN's factor squared from the wrong of two mscales",
        reference="NVIDIA/Megatron-LM#1429",
        op="mla_decode",
        trigger="any call whose softmax is not flat",
        outputs=("o", "lse"),
        make=lambda: scaled(1.27),
    ),
    _fault(
        id="S3",
        title="scale inverted",
        reference="AI-Hypercomputer/maxtext#1370",
        op="attention",
        trigger="any call",
        outputs=("o", "lse"),
        make=_inverted,
    ),
    _fault(
        id="S4",
        title="a finite number stands for a masked score and for the first maximum",
        reference="flashinfer-ai/flashinfer#4451",
        op="mla_decode",
        trigger="all logits of a row below -5e4 ln 2, or a row without keys",
        outputs=("o", "lse"),
        make=_sentinel,
    ),
    _fault(
        id="S5",
        title="the maximum starts at -inf without a guard",
        reference="ggml-org/llama.cpp#12776",
        op="attention",
        trigger="the first block that a row reads is masked throughout",
        outputs=("o", "lse"),
        make=lambda: _unguarded_from_negative_infinity(FROM_THE_RIGHT),
    ),
    _fault(
        id="S6",
        title="the same in decode: the block that is read first has no visible key",
        reference="vllm-project/vllm#48366",
        op="mla_decode",
        trigger="several causal queries, whose last block of 16 has fewer keys than queries",
        outputs=("o", "lse"),
        make=lambda: _unguarded_from_negative_infinity(FROM_THE_RIGHT),
    ),
    _fault(
        id="S7",
        title="the index of a key wraps (emulated: at 128 instead of 32768)",
        reference="facebookresearch/xformers#719",
        op="mla_decode",
        trigger="more than 128 keys",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(gather=_wrapped),
    ),
    _fault(
        id="S8",
        title="the plain mean of V where there is no mask",
        reference="vllm-project/vllm-ascend#13699",
        op="attention",
        trigger="causal off",
        outputs=("o",),
        make=_plain_mean,
    ),
)
"""In the order of the survey."""
