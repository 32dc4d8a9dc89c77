"""Faults of the state recurrence over chunks (math.md 3.5)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.emulate import LOG2_E
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import called, packed, per_call, rounded, staged
from kdaverify.faults.views import EVERY, LAST, lengths, order, pads, short, transposed, valid
from oracles.chunk import STAGES, Chunk, Stages
from oracles.inputs import Inputs

_state = partial(Fault, stage="state")


def advanced(c: Chunk, *, decay: Tensor | None = None, kg: Tensor | None = None) -> None:
    """The right stage, and the state after the chunk with `given` in the right one's place."""
    before = c.S
    STAGES.state(c)
    decay = transposed(c.decay(LAST)) if decay is None else decay
    c.S = c.store("S", before * decay + c.dot(transposed(c.kg if kg is None else kg), c.v_new))


def _decayed_in_base_2(c: Chunk) -> None:
    advanced(c, decay=transposed(c.decay(LAST)) ** LOG2_E)


def _keys_decayed_twice(c: Chunk) -> None:
    advanced(c, kg=c.kg * c.decay(LAST, EVERY))


def _never_decayed(c: Chunk) -> None:
    advanced(c, decay=torch.ones_like(transposed(c.decay(LAST))))


def _columns_decayed(c: Chunk) -> None:
    advanced(c, decay=c.decay(LAST) if c.S.shape[-1] == c.S.shape[-2] else None)


def _last_row_padded(c: Chunk) -> None:
    whole = transposed(c.decay(LAST))
    advanced(
        c,
        decay=torch.where(short(c), 1.0, whole),
        kg=torch.where(short(c), c.kg * (-c.G[..., LAST, :]).exp(), c.kg),
    )


def _last_row_of_the_next(c: Chunk) -> None:
    # The rows past the end are those of what follows in memory, whose gates look like the
    # sequence's own.
    beyond = (valid(c).shape[-2] - lengths(c) - 1).clamp(min=0)
    more = c.G.gather(-2, beyond.expand(*c.G.shape[:2], 1, c.G.shape[-1])).exp()
    factor = torch.where(short(c), more, 1.0)
    advanced(c, decay=transposed(c.decay(LAST) * factor), kg=c.kg * factor)


def _tail_rows_rounded(c: Chunk) -> None:
    advanced(c, kg=torch.where(lengths(c) < 16, torch.zeros_like(c.kg), c.kg))


def _one_token_tail(c: Chunk) -> None:
    STAGES.state(c)
    wrong = torch.where(lengths(c) == 1, c.u, c.v_new)
    c.S = c.store("S", c.S + c.dot(transposed(c.kg), wrong - c.v_new))
    c.v_new = wrong


def _v_new_after_gating(c: Chunk) -> None:
    STAGES.state(c)
    c.v_new = c.store("v_new", c.v_new * c.decay(LAST, EVERY).mean(-1, keepdim=True))


def _snapshot_in_the_next_slot(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    outputs = kernel(x)
    walked = order(x)
    source = torch.tensor([n - 1 if n and x.lengths[n - 1] else n for n in walked])
    start = torch.where(
        (source == torch.tensor(walked))[:, None, None, None], x.state[walked], outputs[1][source]
    ).to(kernel.contract.work)
    first = [True]

    def output(c: Chunk) -> None:
        c.h = c.store("h", start) if first else c.h
        first.clear()
        STAGES.output(c)

    return (kernel(x, output=output)[0] if walked else outputs[0]), outputs[1]


def _at_doubled_slots(x: Inputs) -> Stages:
    kept: list[Tensor] = []

    def output(c: Chunk) -> None:
        i = len(kept)
        kept.append(c.h)
        c.h = torch.zeros_like(c.h) if i % 2 else kept[i // 2][: len(c.h)]
        STAGES.output(c)

    return replace(STAGES, output=output) if packed(x) else STAGES


def _accumulator_of_the_head_before(c: Chunk) -> None:
    STAGES.output(c)
    left = c.o.roll(1, dims=1)
    left[:, 0] = 0
    c.o = c.o + left


def _carried_in_16_bits_without_final_state(setting: Setting) -> Patch:
    return Patch(
        variants={"final_state=no": replace(rounded("bf16", "S")(setting), exposes=("o",))}
    )


def _eps_in_the_logarithm(setting: Setting) -> Patch:
    def cumsum(c: Chunk) -> None:
        biased = (c.tokens.g.exp() + 1e-6 * setting.strength).log()
        c.tokens = replace(c.tokens, g=torch.where(pads(c), c.tokens.g, biased))
        STAGES.cumsum(c)

    table = replace(STAGES, cumsum=cumsum)
    return Patch(stages=lambda _: table)


FAULTS: Final = (
    _state("GA3", "the state decays in base 2 what was summed in base e",
           "flashserve/fla-npu@07adc68c (b)", "A",
           "any decay; o from the second chunk or with an initial state", ("o", "final_state"),
           staged(state=_decayed_in_base_2), graded=True),
    _state("H1", "key decay applied twice", "flashserve/fla-npu@07adc68c (a)", "A",
           "any decay; o from the second chunk", ("o", "final_state"),
           staged(state=_keys_decayed_twice), graded=True),
    _state("H2", "the carried state is never decayed", "flashserve/fla-npu@07adc68c (c)", "A",
           "three chunks, or an initial state", ("o", "final_state"), staged(state=_never_decayed),
           graded=True),
    _state("H4", "the snapshot after the last chunk lands in the first slot of the next sequence",
           "flashserve/fla-npu@53fe5f44 (b)", "B", "a pack of several sequences", ("h", "o"),
           called(_snapshot_in_the_next_slot, when=packed)),
    _state("H6", "the decay to the chunk's end is that of a padded last row",
           "gittensor-ai-lab/sparkinfer#604", "B", "a length that is no multiple of 64",
           ("final_state",), staged(state=_last_row_padded)),
    _state("H7", "the decay to the chunk's end is that of a row past the sequence",
           "tile-ai/tilelang-ascend#855 (review)", "B", "a length that is no multiple of 64",
           ("final_state", "o"), staged(state=_last_row_of_the_next)),
    _state("H8", "rows of a tail below 16 are rounded away", "flashserve/fla-npu#407", "B",
           "a tail of 1 to 15 tokens", ("final_state",), staged(state=_tail_rows_rounded),
           graded=True),
    _state("H10", "v_new of a one-token tail lacks the state", "flashserve/fla-npu#325", "B",
           "a tail of one token", ("v_new", "final_state", "o"), staged(state=_one_token_tail),
           graded=True),
    _state("H11", "the state is carried in 16 bits unless the final one is requested",
           "flashserve/fla-npu@b3945346", "C",
           "16-bit inputs, no final state requested, several chunks of slow decay", ("o",),
           _carried_in_16_bits_without_final_state, dtypes=("bf16",), graded=True),
    _state("H12", "the state is carried in 16 bits", "xLLM-AI/xllm#2055", "C",
           "16-bit inputs, many chunks of slow decay", ("o", "final_state"), rounded("bf16", "S"),
           dtypes=("bf16",), graded=True),
    _state("H23", "the accumulator starts from what the head before left",
           "tile-ai/tilelang-ascend#188", "B", "more than one head", ("o",),
           staged(output=_accumulator_of_the_head_before), graded=True),
    _state("H28", "snapshots lie at doubled slots", "fla-org/fla@e18aedf2,@1fb4e97b", "B",
           "two chunks or more in a sequence of a pack", ("h", "o"), per_call(_at_doubled_slots)),
    _state("DESIGN-a", "the state decays along the value axis", "design document v1", "A",
           "K = V, channels of different decay; o from the third chunk or with an initial state",
           ("o", "final_state"), staged(state=_columns_decayed), graded=True),
    _state("DESIGN-c", "v_new is stored after the gate's scaling", "design document", "A",
           "any decay", ("v_new", "o"), staged(state=_v_new_after_gating), graded=True),
    _state("DESIGN-e", "log(alpha + eps)", "design document", "A", "alpha near 0 or 1, many tokens",
           ("o", "final_state"), _eps_in_the_logarithm, dtypes=("fp64", "fp32"), graded=True),
    _state("DESIGN-h", "state and v_new handed over in 16 bits", "design document", "C",
           "wider inputs, many chunks of slow decay", ("o", "final_state"),
           rounded("bf16", "h", "v_new"), dtypes=("fp32",), graded=True),
)  # fmt: skip
