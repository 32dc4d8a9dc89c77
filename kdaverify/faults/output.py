"""Faults of the output (math.md 3.6), and of merging partial results."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import called, packed, staged, struck
from kdaverify.faults.views import one_of, past_the_end, short, straight, transposed
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

_output = partial(Fault, stage="output")
_TILE = 64


def _state_transposed(c: Chunk) -> None:
    square = c.h.shape[-1] == c.h.shape[-2]
    inter = c.dot(c.qg, transposed(c.h) if square else c.h)
    c.o = c.store("o", c.scale * inter + c.dot(c.Aqk, c.v_new))


def _one_tile_for_both_terms(c: Chunk) -> None:
    STAGES.output(c)
    c.o = c.o + torch.where(short(c), 0.0, c.scale * c.dot(c.qg, c.h))


def _scaled_over_the_key_width(c: Chunk) -> None:
    K, V = c.h.shape[-2:]
    inter = c.dot(c.qg, c.h)
    c.o = c.store(
        "o",
        torch.where(torch.arange(V, device=inter.device) < K, c.scale * inter, inter)
        + c.dot(c.Aqk, c.v_new),
    )


def _half_the_rows(_: Setting) -> Patch:
    def output(c: Chunk) -> None:
        STAGES.output(c)
        rows = c.o.shape[-2]
        c.o = c.o.masked_fill(torch.arange(rows, device=c.o.device)[:, None] >= rows // 2, 0.0)

    table = replace(STAGES, output=output)
    return Patch(variants={"chunk_size=32": Patch(stages=lambda _: table, chunk_size=32)})


def _scale_of_half_a_number(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    (low,) = struct.unpack("<f", struct.pack("<d", x.factor)[:4])
    return kernel(replace(x, scale=low))


def _stored_as_half(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o.half().to(o.dtype), final


def _rows_left_unwritten(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    idle = torch.tensor([length == 0 for length in x.lengths], device=final.device)[
        :, None, None, None
    ]
    beyond = torch.arange(x.T, device=o.device) >= past_the_end(x)
    return o.masked_fill(beyond[:, None, None], torch.nan), final.masked_fill(idle, torch.nan)


def _columns_scrambled(outputs: Outputs, x: Inputs, random: torch.Generator) -> Outputs:
    o, final = outputs
    half = x.V // 2
    shift = 1 + int(torch.randint(half - 1, (), generator=random))
    return torch.cat((o[..., :half], o[..., half:].roll(shift, dims=-1)), dim=-1), final


def _merge_of_nothing(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    idle = torch.tensor([length == 0 for length in x.lengths], device=final.device)[
        :, None, None, None
    ]
    return o, final.masked_fill(idle, torch.nan)


def _split_is_nan(outputs: Outputs, _: Inputs, random: torch.Generator) -> Outputs:
    o, final = outputs
    tile = torch.arange(o.shape[1], device=o.device)[None, :, None, None] // _TILE
    split = int(torch.randint(int(tile.max()) + 1, (), generator=random))
    return o.masked_fill((tile == split) & one_of(2, o, random), torch.nan), final


def _carried_only_on_request(_: Setting) -> Patch:
    def state(c: Chunk) -> None:
        STAGES.state(c)
        c.S = torch.zeros_like(c.S)

    table = replace(STAGES, state=state)
    return Patch(variants={"final_state=no": Patch(stages=lambda _: table, exposes=("o",))})


def _layout_of_swapped_axes(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o, final.transpose(0, 1).reshape(final.shape)


def _rows_one_head_apart(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    if x.v.is_contiguous():
        return o, final
    places = x.T * x.HV
    # what is left once every row has overwritten the one before
    heads = torch.cat((o[:, :, 0], o[:, -1, 1:]), dim=1)
    flat = torch.cat((heads, o.new_zeros(x.B, places - heads.shape[1], x.V)), dim=1)
    return straight(o, flat.view(o.shape)), final


FAULTS: Final = (
    _output("O1", "the state is read transposed", "vllm-project/vllm#40956,#41292", "A",
            "K = V; three chunks or an initial state", ("o",), staged(output=_state_transposed),
            graded=True),
    _output("O2", "both products accumulate in one tile", "flashserve/fla-npu@8503735a", "A",
            "a full chunk with a state before it", ("o",), staged(output=_one_tile_for_both_terms),
            graded=True),
    _output("O3", "the fused path for 64 rows takes other chunk sizes",
            "flashserve/fla-npu@46afe1ac", "B", "a chunk size of 32", ("o",), _half_the_rows),
    _output("O4", "the scale ends at the key width", "QwenLM/FlashQLA@2ef89a7", "B",
            "V above K, a state", ("o",), staged(output=_scaled_over_the_key_width), graded=True),
    _output("O5", "the scale is half of a double read as a float",
            "flashserve/fla-npu@25f3fed3,@8a12c32f", "A", "any", ("o", "dv"),
            called(_scale_of_half_a_number)),
    _output("O6", "sums stored as fp16", "vllm-project/vllm#54146,#54308", "C",
            "outputs above 65504 or below 6e-8", ("o",), called(_stored_as_half), dtypes=("bf16",)),
    _output("O10", "rows of padded tokens and unused states hold garbage", "fla-org/fla@80e69a56",
            "B", "tokens past the last offset, empty sequences", ("o", "final_state"),
            called(_rows_left_unwritten, when=packed)),
    _output("B22", "columns scrambled at one value width", "fla-org/fla@7962e24e (#256)", "D",
            "V = 64", ("o", "dv"), struck(1.0, _columns_scrambled, when=lambda x: x.V == 64)),
    _output("X3", "merging two empty states is NaN",
            "flashinfer-ai/flashinfer#4051, vllm-project/vllm#39148", "A",
            "an empty sequence", ("final_state",), called(_merge_of_nothing, when=packed)),
    _output("X4", "stored with batch and heads swapped", "vllm-project/flash-attention#87", "B",
            "two sequences and two heads or more", ("final_state",),
            called(_layout_of_swapped_axes), graded=True),
    _output("X5", "rows of the output one head apart", "flagos-ai/FlagGems#5235", "B",
            "values that are not contiguous, several heads", ("o",), called(_rows_one_head_apart)),
    _output("X6", "one split is NaN", "ROCm/aiter#4350, #4420", "D", "calls repeated", ("o",),
            struck(0.1, _split_is_nan)),
    _output("X7", "what the next chunk needs is stored only on request",
            "flashinfer-ai/flashinfer#50", "A", "no final state requested, two chunks", ("o",),
            _carried_only_on_request),
)  # fmt: skip
