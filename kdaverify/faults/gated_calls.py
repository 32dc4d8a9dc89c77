"""Faults around calls of kernels with shared gates: wrappers, engines, whole layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.fault import Fault
from kdaverify.faults.gates import left_out
from kdaverify.faults.kernel import Outputs, PatchedPipeline
from kdaverify.faults.normalisation import normalised_by
from kdaverify.faults.patches import activated, called, dense, packed, stepped
from kdaverify.faults.resume import pads_before_the_first_token
from kdaverify.faults.views import past_the_end, sequence, straight
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    torch_activations,
)
from oracles.inputs import Inputs
from oracles.stages import Named

_CHUNK = 64
_gdn = partial(Fault, operator="gdn", dtypes=("fp32", "bf16", "fp16"))


def _padded(x: Inputs) -> bool:
    return packed(x) and past_the_end(x) < x.T


def _continued(x: Inputs) -> bool:
    return _padded(x) and x.initial_state is not None


def _pads(x: Inputs) -> Tensor:
    """[1, T, 1], True on rows past the last offset."""
    return (torch.arange(x.T, device=x.q.device) >= past_the_end(x))[None, :, None]


def _through_the_pads(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    """The last sequence continues over rows past the last offset, whose results are cut off."""
    assert x.cu_seqlens is not None
    offsets = x.cu_seqlens.clone()
    offsets[-1] = x.T
    o, final = kernel(replace(x, cu_seqlens=offsets))
    return o.masked_fill(_pads(x)[..., None], 0.0), final


def _pads_decay(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return _through_the_pads(kernel, replace(x, beta=x.beta.masked_fill(_pads(x), 0.0)))


def _pads_erase(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return _through_the_pads(kernel, replace(x, v=x.v.masked_fill(_pads(x)[..., None], 0.0)))


def _counts_of_another_row(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    finals = list[Tensor]()
    for n, length in enumerate(x.lengths):
        counted = min(length, x.lengths[(n + 1) % x.N])
        finals.append(final[n : n + 1] if counted == length else kernel(sequence(x, n, counted))[1])
    return o, torch.cat(finals)


def _state_of_a_shorter_prefix(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    finals = list[Tensor]()
    for n, length in enumerate(x.lengths):
        whole = length // _CHUNK * _CHUNK
        finals.append(final[n : n + 1] if not whole else kernel(sequence(x, n, whole))[1])
    return o, torch.cat(finals)


def _quarters_swapped(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    quarter, rows = x.T // 4, torch.arange(x.T, device=o.device)
    rows[quarter : 2 * quarter] += quarter
    rows[2 * quarter : 3 * quarter] -= quarter
    return o[:, rows], final


def _tokens_of_gates_moved(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, g=x.g.roll(1, 1), beta=x.beta.roll(1, 1)))


def _gate_of_the_first_head(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, g=x.g[:, :, :1].expand_as(x.g)))


def _transposed_between(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    square = x.K == x.V and x.initial_state is not None
    return kernel(replace(x, initial_state=x.state.transpose(-1, -2)) if square else x)


def _beta_in_16_bits(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, beta=straight(x.beta, FORMATS["bf16"].round(x.beta))))


def _nothing_written(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, beta=torch.zeros_like(x.beta)))


def _normalised_without_eps(_: float) -> Mapping[str, ActivationCall]:
    right = torch_activations()["l2norm"]

    def backward(x: ActivationArguments) -> Named:
        assert x.cotangent is not None
        wide, dy = x.tensors["x"].float(), x.cotangent.float()
        norm = wide.square().sum(-1, keepdim=True).sqrt()
        y = wide / norm
        dx = (dy - y * (y * dy).sum(-1, keepdim=True)) / norm
        return {"dx": dx.to(x.tensors["x"].dtype)}

    return {"l2norm": replace(right, backward=backward)}


def _larger_of_norm_and_eps(wide: Tensor, eps: float) -> Tensor:
    return wide.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)


_OUTPUTS: Final = ("o", "final_state")
FAULTS: Final = (
    _gdn("GDN-D11", "gates and write strengths are those of the token before",
         "vllm-project/vllm#51812", "B", "two tokens or more", _OUTPUTS,
         called(_tokens_of_gates_moved), "entry"),
    _gdn("GDN-D14", "decode rounds the write strength to 16 bits",
         "sgl-project/sglang#38975, #40362; vllm-project/vllm#53877", "C", "fp32, decode", _OUTPUTS,
         stepped(_beta_in_16_bits), "decode", dtypes=("fp32",)),
    _gdn("GDN-D27", "decode reads the state transposed",
         "gittensor-ai-lab/sparkinfer#610, #615; ROCm/aiter#4057", "B",
         "decode after a prefill, K = V", _OUTPUTS, stepped(_transposed_between), "decode"),
    _gdn("GDN-D29", "the activation in the kernel is declared and left out",
         "PrismML-Eng/llama.cpp#237", "A", "any logits", ("g", "beta"), activated(left_out),
         "gates"),
    Fault("DN-D33", "decode leaves out the write where there is no gate", "fla-org/fla@f636f5a1",
          "A", "no gate, decode", _OUTPUTS, stepped(_nothing_written), "decode",
          ("fp32", "bf16", "fp16"), operator="delta"),
    _gdn("GDN-D36", "the scale of the queries is missing", "NeuraLegion/shainet#176", "A", "any",
         ("o",), called(lambda kernel, x: kernel(replace(x, scale=1.0))), "entry"),
    _gdn("GDN-D38", "the gate of the first head is taken for all", "golang-design/accel#27", "A",
         "two value heads", _OUTPUTS, called(_gate_of_the_first_head), "entry"),
    _gdn("GDN-L1", "the mask of padding is skipped for one sequence",
         "huggingface/transformers#46773", "B", "one sequence, padding", ("final_state",),
         called(_through_the_pads, when=lambda x: _padded(x) and x.N == 1), "packing"),
    _gdn("GDN-L2", "the mask of padding is skipped where a state is continued",
         "huggingface/transformers#47087", "B", "an initial state, padding", ("final_state",),
         called(_through_the_pads, when=_continued), "packing"),
    _gdn("GDN-L3", "padding rows write nothing, and decay the state",
         "huggingface/transformers#48256", "B", "padding", ("final_state",),
         called(_pads_decay, when=_padded), "packing"),
    _gdn("GDN-L4", "the values of padding rows are masked, their decay and keys are not",
         "fla-org/fla#1272", "B", "padding", ("final_state",), called(_pads_erase, when=_padded),
         "packing"),
    _gdn("GDN-L6", "the state is that after as many tokens as another sequence has",
         "vllm-project/vllm#55504", "B", "a pack of sequences of several lengths", ("final_state",),
         called(_counts_of_another_row, when=packed), "packing"),
    _gdn("GDN-L8", "the gate is doubled", "ggml-org/llama.cpp#17592 (comments)", "A", "any gate",
         _OUTPUTS, called(lambda kernel, x: kernel(replace(x, g=2 * x.g))), "entry"),
    _gdn("GDN-L9", "the state is that of a shorter prefix",
         "sgl-project/sglang#39830; vllm-project/vllm#53912", "E",
         "more than 64 tokens, no multiple of it", ("final_state",),
         called(_state_of_a_shorter_prefix), "resume"),
    _gdn("GDN-L10", "padding rows are read before the first token",
         "AI-Hypercomputer/maxtext#5295 (a)", "B", "padding", _OUTPUTS,
         called(pads_before_the_first_token, when=_padded), "packing"),
    _gdn("GDN-L11", "the backward of l2norm divides rows of zeros by 0",
         "AI-Hypercomputer/maxtext#5295 (b)", "A", "rows of zeros", ("dx",),
         activated(_normalised_without_eps), "l2norm"),
    _gdn("GDN-N13", "rows are divided by the larger of their norm and eps",
         "fla-org/fla#508, @9b9e47d7", "A", "rows of norm below 1e-2", ("y",),
         activated(partial(normalised_by, _larger_of_norm_and_eps)), "l2norm"),
    _gdn("GDN-L12", "two quarters of the sequence are swapped", "NVIDIA/Megatron-LM#5664 (review)",
         "B", "four tokens or more", ("o",), called(_quarters_swapped, when=dense), "entry"),
)  # fmt: skip
