"""Faults of packed sequences: offsets, chunk tables, empty sequences, padding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import called, packed
from kdaverify.faults.views import past_the_end, sequence, token_rows
from oracles.inputs import Inputs

_packing = partial(Fault, stage="packing")
_CHUNK = 64
_LANE = 32


def _offsets(lengths: list[int], like: Tensor | None) -> Tensor:
    return torch.tensor(
        [0, *accumulate(lengths)], dtype=torch.int32 if like is None else like.dtype
    )


def _empty(x: Inputs) -> Tensor:
    """[N, 1, 1, 1], True for sequences without tokens."""
    return torch.tensor([not length for length in x.lengths], device=x.q.device)[
        :, None, None, None
    ]


def _every_chunk_a_sequence(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    pieces = [
        min(_CHUNK, length - first) for length in x.lengths for first in range(0, length, _CHUNK)
    ]
    if not pieces:
        return kernel(x)
    owner = torch.arange(len(pieces)).clamp(max=x.N - 1)
    state = None if x.initial_state is None else x.initial_state[owner]
    o, final = kernel(replace(x, cu_seqlens=_offsets(pieces, x.cu_seqlens), initial_state=state))
    missing = x.state[len(final) :].to(final.dtype)
    return o, torch.cat((final, missing))[: x.N]


def _empties_not_counted(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    alive = [n for n, length in enumerate(x.lengths) if length]
    state, moved = x.state, x.state.clone()
    moved[alive] = state[: len(alive)]
    o, final = kernel(replace(x, initial_state=moved))
    stored = final.clone()
    stored[: len(alive)] = final[alive]
    return o, stored


def _final_state_left(value: float) -> Patch:
    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        return o, final.masked_fill(_empty(x), value) if packed(x) else final

    return Patch(forward=forward)


def _all_empty_not_copied(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o, torch.zeros_like(final)


def _every_chunk_at_the_start(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    rows = torch.arange(x.T, device=x.q.device)
    for first, length in zip(x.starts, x.lengths, strict=True):
        own = torch.arange(length, device=rows.device)
        rows[first : first + length] = first + own % _CHUNK
    return kernel(token_rows(x, rows))


def _last_offset_padded(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    lengths = [*x.lengths[:-1], x.T - sum(x.lengths[:-1])]
    return kernel(replace(x, cu_seqlens=_offsets(lengths, x.cu_seqlens)))


def _state_leaks(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, finals = torch.zeros_like(x.v), list[Tensor]()
    before = x.state[:1].to(kernel.contract.carry.dtype)
    for n, (first, length) in enumerate(zip(x.starts, x.lengths, strict=True)):
        if length:
            piece, before = kernel(replace(sequence(x, n, length), initial_state=before))
            o = torch.cat((o[:, :first], piece, o[:, first + length :]), dim=1)
        finals.append(before)
    return o, torch.cat(finals)


def _one_sequence(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    state = None if x.initial_state is None else x.initial_state[:1]
    o, final = kernel(
        replace(x, cu_seqlens=_offsets([sum(x.lengths)], x.cu_seqlens), initial_state=state)
    )
    return o, final.expand(x.N, *final.shape[1:]).contiguous()


def _rows_of_the_call_before(_: Setting) -> Patch:
    stale: dict[torch.Size, Tensor] = {}

    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        if past_the_end(x) < x.T:
            # A new buffer holds values; later ones hold what the call before wrote there.
            below = torch.arange(x.T, device=o.device) < past_the_end(x)
            o = torch.where(below[:, None, None], o, stale.get(o.shape, x.v))
        stale[o.shape] = o.detach()
        return o, final

    return Patch(forward=forward)


def _flags_unbalanced(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if any(0 < length % _CHUNK <= _LANE for length in x.lengths):
        raise RuntimeError(
            "aicore timeout: the second lane of a tail has no rows, and its flag is never set"
        )
    return kernel(x)


def _stale_state_of_an_empty_sequence(setting: Setting) -> Patch:
    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        stale = torch.randn(final.shape, generator=setting.random).to(final)
        return o, torch.where(_empty(x), stale, final) if packed(x) else final

    return Patch(forward=forward)


FAULTS: Final = (
    _packing("V1", "every chunk is taken for a sequence of its own", "fla-org/fla@e2a67879", "B",
             "a pack with a sequence of two chunks", ("o", "final_state"),
             called(_every_chunk_a_sequence, when=packed)),
    _packing("V3", "one of two tables leaves empty sequences out",
             "ByteDance-Seed/VeOmni#1076 (review)", "B",
             "an empty sequence before others, an initial state", ("o", "final_state"),
             called(_empties_not_counted, when=lambda x: packed(x) and not all(x.lengths))),
    _packing("V4", "the final state of an empty sequence is never written",
             "flashinfer-ai/flashinfer#3536", "F", "an empty sequence, an initial state",
             ("final_state",), lambda _: _final_state_left(0.0)),
    _packing("V6", "a pack of empty sequences copies no state", "MoonshotAI/FlashKDA#32", "E",
             "nothing but empty sequences, an initial state", ("final_state",),
             called(_all_empty_not_copied, when=lambda x: packed(x) and not any(x.lengths))),
    _packing("V7", "the final state of an empty sequence is stale memory",
             "MoonshotAI/FlashKDA#24,#25", "D", "an empty sequence, calls repeated",
             ("final_state",), _stale_state_of_an_empty_sequence),
    _packing("V8", "chunk offsets are all zero", "vllm-project/vllm-ascend#14192", "B",
             "a pack with a sequence of two chunks", ("o",),
             called(_every_chunk_at_the_start, when=packed)),
    _packing("V9", "the last offset is padded to the tokens there are",
             "vllm-project/vllm-ascend#6822", "E", "tokens past the last offset",
             ("o", "final_state"), called(_last_offset_padded, when=packed)),
    _packing("V10", "the state leaks into the next sequence", "NVIDIA-NeMo/Automodel#2147", "E",
             "a pack of several sequences", ("o",), called(_state_leaks, when=packed), graded=True),
    _packing("V11", "the offsets collapse to one sequence", "fla-org/fla#842,#1088", "E",
             "a pack of several sequences", ("o",), called(_one_sequence, when=packed),
             graded=True),
    _packing("V13", "tokens past the last offset are left unwritten",
             "flashserve/fla-npu#266 (review)", "B", "tokens past the last offset", ("o",),
             _rows_of_the_call_before),
    _packing("V14", "a tail with an empty lane never ends", "flashserve/fla-npu lessons 17.4", "F",
             "a pack with a tail of at most 32 tokens", ("call",),
             called(_flags_unbalanced, when=packed)),
)  # fmt: skip
