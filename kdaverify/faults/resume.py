"""Faults of states: initial and final ones, pools of them, continued runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import called, packed
from kdaverify.faults.views import past_the_end, sequence, straight, token_rows
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

_resume = partial(Fault, stage="resume")
_CHUNK = 64
_SPECULATED = 3
_TABLE = 4


def _padding(x: Inputs) -> bool:
    return past_the_end(x) < x.T


def _given(x: Inputs) -> bool:
    return x.initial_state is not None


def _slot_of_the_last_owner(_: Setting) -> Patch:
    pool: dict[torch.Size, Tensor] = {}

    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        shape = x.state.shape
        fresh = x.initial_state is None and shape in pool
        o, final = kernel(replace(x, initial_state=pool[shape].to(x.g.dtype)) if fresh else x)
        pool[shape] = final.detach().clone()
        return o, final

    return Patch(forward=forward)


def _not_stored_for_short_prompts(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    short = torch.tensor([length == _SPECULATED + 1 for length in x.lengths], device=final.device)
    return o, torch.where(short[:, None, None, None], x.state.to(final.dtype), final)


def _overwritten_with_zeros(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(replace(x, initial_state=torch.zeros_like(x.state)))


def _uninitialised(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    # What memory held before: the inputs of the call, in some order.
    left = x.k.flatten()[torch.arange(x.state.numel(), device=x.k.device) % x.k.numel()]
    return kernel(replace(x, initial_state=left.view(x.state.shape).to(x.g.dtype)))


def _last_slot_by_index_minus_one(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    rest = token_rows(x, (torch.arange(x.T, device=x.q.device) + past_the_end(x)) % x.T)
    padded = sequence(replace(rest, cu_seqlens=None, initial_state=None), 0, x.T - past_the_end(x))
    return o, torch.cat((final[:-1], kernel(padded)[1]))


def _refused(_: PatchedPipeline, x: Inputs) -> Outputs:
    raise IndexError(
        f"state index -1 of {x.T - past_the_end(x)} padded rows is out of range [0, {x.N})"
    )


def _slot_zero_means_padding(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    state = x.state
    first = torch.arange(x.N, device=state.device)[:, None, None, None] == 0
    o, final = kernel(replace(x, initial_state=state.masked_fill(first, 0.0)))
    return o, torch.where(first, state.to(final.dtype), final)


def _table_read_before_its_start(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    short = torch.tensor([length < _TABLE for length in x.lengths], device=x.q.device)[
        :, None, None, None
    ]
    return kernel(replace(x, initial_state=torch.where(short, x.state.roll(1, dims=0), x.state)))


def pads_before_the_first_token(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    rest = token_rows(x, (torch.arange(x.T, device=x.q.device) + past_the_end(x)) % x.T)
    padded = sequence(
        replace(rest, cu_seqlens=None, initial_state=x.state[:1]), 0, x.T - past_the_end(x)
    )
    leaked = kernel(padded)[1].to(x.state.dtype)
    return kernel(replace(x, initial_state=torch.cat((leaked, x.state[1:]))))


def _in_the_inputs_type(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o, final.to(x.q.dtype).to(final.dtype)


def _read_as_bfloat16(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    largest = torch.finfo(torch.float16).max

    def misread(tensor: Tensor) -> Tensor:
        value = tensor.detach().view(torch.bfloat16).float().clamp(-largest, largest)
        return straight(tensor, value.to(tensor.dtype))

    return kernel(replace(x, q=misread(x.q), k=misread(x.k), v=misread(x.v)))


def _partial_chunk_dropped(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    kept: list[Tensor] = []
    for n, length in enumerate(x.lengths):
        whole = length // _CHUNK * _CHUNK
        kept.append(
            final[n : n + 1]
            if whole == length
            else _state_after(kernel, x, n, whole).to(final.dtype)
        )
    return o, torch.cat(kept)


def _state_after(kernel: PatchedPipeline, x: Inputs, n: int, tokens: int) -> Tensor:
    return kernel(sequence(x, n, tokens))[1] if tokens else x.state[n : n + 1].clone()


def _transitions_in_16_bits(setting: Setting) -> Patch:
    def state(c: Chunk) -> None:
        before, decay = c.S, c.decay(slice(-1, None))
        STAGES.state(c)
        transition = torch.diag_embed(decay.squeeze(-2)) - c.dot(c.kg.transpose(-1, -2), c.w)
        lost = FORMATS["bf16"].round(transition) - transition
        c.S = c.store("S", c.S + setting.strength * c.dot(lost, before))

    table = replace(STAGES, state=state)
    return Patch(stages=lambda _: table)


FAULTS: Final = (
    _resume("S3", "a new request inherits the state of the last one",
            "vllm-project/tpu-inference#2408,#2431", "E",
            "no initial state, after another call of the same shape", ("o", "final_state"),
            _slot_of_the_last_owner),
    _resume("S5", "a prompt taken for a decode stores no state", "vllm-project/vllm#53051", "E",
            "a sequence of exactly 4 tokens", ("final_state",),
            called(_not_stored_for_short_prompts)),
    _resume("S10", "the initial state is overwritten with zeros", "xLLM-AI/xllm#1262 (review)", "E",
            "an initial state", ("o", "final_state"), called(_overwritten_with_zeros, when=_given),
            graded=True),
    _resume("S11", "an absent initial state is whatever memory holds",
            "flashserve/fla-npu@2cb7d422", "B", "no initial state", ("o", "final_state"),
            called(_uninitialised, when=lambda x: not _given(x))),
    _resume("S14", "the final state has the type of the inputs", "flashserve/fla-npu lessons 17.2",
            "C", "16-bit inputs; most where little is written", ("final_state",),
            called(_in_the_inputs_type), dtypes=("bf16", "fp16"), graded=True),
    _resume("S16", "padded rows update the last slot", "flashinfer-ai/flashinfer#5042,#5092", "E",
            "tokens past the last offset", ("final_state",),
            called(_last_slot_by_index_minus_one, when=_padding)),
    _resume("S17", "padded rows are refused", "sgl-project/sglang#27601", "F",
            "tokens past the last offset", ("call",), called(_refused, when=_padding)),
    _resume("S19", "the first slot is taken for padding", "weicj/vLLM-2080Ti-Definitive#93", "E",
            "a pack with an initial state", ("o", "final_state"),
            called(_slot_zero_means_padding, when=lambda x: packed(x) and _given(x))),
    _resume("S20", "a table is read before its start", "vllm-project/vllm#50021", "B",
            "a sequence of less than 4 tokens beside others, an initial state",
            ("o", "final_state"), called(_table_read_before_its_start, when=_given)),
    _resume("S25", "fp16 is read as bf16", "flashinfer-ai/flashinfer#4219 (a)", "B", "fp16 inputs",
            ("o", "final_state"), called(_read_as_bfloat16), dtypes=("fp16",)),
    _resume("P8", "padding leaks into the first tokens", "AI-Hypercomputer/maxtext#5295 (a)", "E",
            "padded tokens", ("o", "final_state"),
            called(pads_before_the_first_token, when=_padding)),
    _resume("C2", "transitions of chunks are merged in 16 bits", "fla-org/fla#740", "C",
            "16-bit inputs, many chunks", ("o", "final_state"), _transitions_in_16_bits,
            dtypes=("bf16",), graded=True),
    _resume("DESIGN-b", "a partial chunk is dropped from the state", "design document", "B",
            "a length that is no multiple of 64", ("final_state",), called(_partial_chunk_dropped)),
)  # fmt: skip
