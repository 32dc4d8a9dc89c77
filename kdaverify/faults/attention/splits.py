"""Faults of splits, their combination, lse, and merges of states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, PLAIN, AttentionPatch, KernelRequest, patched
from kdaverify.faults.fault import Fault, Make
from oracles.attention.pipeline import AttentionPipeline, Partial, Running, at_once, finish

SPLIT: Final = replace(PLAIN, splits=4, cut="blocks")
"""Whole blocks of 16 in four parts: fewer than 49 keys leave parts empty."""
FIVE: Final = replace(PLAIN, splits=5)
MANY: Final = 1024
"""Keys beyond which parts are merged as a tree."""
ONE_TILE: Final = 64
"""Keys of a tile; what has no more is not split."""
PITCH: Final = 8
LATE: Final = 256
NEARLY: Final = 1e-5
FLOOR: Final = -5e4
Call = Callable[..., Any]


def _scratch_merged(
    run: AttentionPipeline, parts: list[Partial], *, o: float, lse: float
) -> Partial:
    """Parts without a key hold whatever their memory held."""
    found = list[Partial]()
    for part in parts:
        none = part.lse == -torch.inf
        top = torch.stack([p.lse for p in parts]).amax(0)
        stale = (top + lse).masked_fill(top == -torch.inf, 0.0)
        found.append(
            Partial(
                torch.where(none[..., None], torch.full_like(part.o, o), part.o),
                torch.where(none, stale, part.lse),
            )
        )
    return at_once(run, found)


def _heads_and_rows_swapped(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """lse is laid out [s_q, H] and read as [H, s_q]."""
    return o, lse.transpose(0, 1).reshape(lse.shape)


def _other_pitch(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    """lse of partials is written at the pitch of the rows, and read at a multiple of 8."""
    lse = torch.stack([p.lse for p in parts])
    rows = lse.shape[-1]
    pitch = -(-rows // PITCH) * PITCH
    at = torch.arange(lse.numel() // rows)[:, None] * pitch + torch.arange(rows)
    read = lse.flatten()[at.clamp(max=lse.numel() - 1)].view(lse.shape)
    return at_once(run, [Partial(p.o, one) for p, one in zip(parts, read, strict=True)])


def _rows_apart(right: Call, given: dict[str, Any]) -> Any:
    """Rows of o are stored a row of heads apart from where they belong, the last ones nowhere."""
    o, lse = right(**given)
    flat = o.flatten(0, 1)
    wrong = torch.zeros_like(flat)
    at = torch.arange(len(flat)) * 2
    wrong[at[at < len(flat)]] = flat[: int((at < len(flat)).sum())]
    return wrong.view(o.shape), lse


def _last_split(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    return replace(at_once(run, parts), lse=parts[-1].lse)


def _odd_part_of_a_tree() -> AttentionPatch:
    """Parts of many keys are merged by pairs, level by level. The odd one of a later level has no
    more weight than the pair before it.
    """
    keys = list[int]()

    def remember(request: KernelRequest) -> KernelRequest:
        keys[:] = [request.s_k]
        return request

    def combine(run: AttentionPipeline, parts: list[Partial]) -> Partial:
        if keys[0] <= MANY:
            return at_once(run, parts)
        level = 0
        while len(parts) > 1:
            pairs = [at_once(run, [*pair]) for pair in zip(parts[::2], parts[1::2], strict=False)]
            if len(parts) % 2:
                least = torch.minimum(parts[-1].lse, pairs[-1].lse)
                pairs.append(replace(parts[-1], lse=least) if level else parts[-1])
            parts, level = pairs, level + 1
        return parts[0]

    return patched(design=FIVE, request=remember, combine=combine)


def _unsplit_left_out(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return o, torch.zeros_like(lse) if request.s_k <= ONE_TILE else lse


def _strides_of_a(right: Call, given: dict[str, Any]) -> Any:
    o_a, o_b = given["o_a"], given["o_b"]
    last = sum((n - 1) * stride for n, stride in zip(o_a.shape, o_a.stride(), strict=True))
    room = o_b.untyped_storage().nbytes() // o_b.itemsize - o_b.storage_offset()
    at = torch.arange(last + 1).as_strided(o_a.shape, o_a.stride()).clamp(max=room - 1)
    return right(**given | {"o_b": o_b.as_strided((room,), (1,))[at]})


def _infinite_mass(_: Call, given: dict[str, Any]) -> Any:
    """An empty part comes with +inf and is merged as it is."""
    swapped = {
        name: x.masked_fill(x == -torch.inf, torch.inf) if name.startswith("lse") else x
        for name, x in given.items()
    }
    o_a, o_b, a, b = (swapped[name].float() for name in ("o_a", "o_b", "lse_a", "lse_b"))
    top = torch.maximum(a, b)
    x, y = torch.exp(a - top), torch.exp(b - top)
    wide = [(w / (x + y)).transpose(-1, -2)[..., None] for w in (x, y)]
    o = wide[0] * o_a + wide[1] * o_b
    return o.to(given["o_a"].dtype), top + torch.log(x + y)


def _near_averaged(right: Call, given: dict[str, Any]) -> Any:
    """Parts of nearly equal LSE are averaged; the larger LSE grows by ln 2."""
    o, lse = right(**given)
    a, b = given["lse_a"], given["lse_b"]
    near = (a - b).abs() < NEARLY
    mean = 0.5 * (given["o_a"].float() + given["o_b"].float())
    o = torch.where(near.mT[..., None], mean.to(o.dtype), o)
    return o, torch.where(near, torch.maximum(a, b) + math.log(2.0), lse)


def _from_a_finite_maximum(_: Call, given: dict[str, Any]) -> Any:
    """Parts are taken one by one; the maximum of none of them is a number that LSE may be below."""
    top = torch.full_like(given["lse_a"], FLOOR)
    total, acc = torch.zeros_like(top), torch.zeros_like(given["o_a"], dtype=torch.float32)
    for o, lse in ((given["o_a"], given["lse_a"]), (given["o_b"], given["lse_b"])):
        highest = torch.maximum(top, lse)
        before, weight = torch.exp(top - highest), torch.exp(lse - highest)
        total = before * total + weight
        acc = before.mT[..., None] * acc + weight.mT[..., None] * o
        top = highest
    o = acc / total.mT[..., None].masked_fill(total.mT[..., None] == 0, 1.0)
    return o.to(given["o_a"].dtype), top + torch.log(total)


def _marked_finite(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    none = lse == -torch.inf
    return o.masked_fill(none[..., None], 1.0), lse.masked_fill(none, -49993.0)


def _left_as_allocated(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    if request.s_k:
        return o, lse
    return torch.full_like(o, 0.5), torch.zeros_like(lse)


def _other_scale_of_the_maximum() -> AttentionPatch:
    """The exported maximum is that of scores times d^-1/2."""
    width = list[int]()

    def remember(request: KernelRequest) -> KernelRequest:
        width[:] = [request.q.shape[-1]]
        return request

    def export(run: AttentionPipeline, state: Running) -> Partial:
        right = finish(run, state)
        off = state.m * (width[0] ** -0.5 - run.scale)
        return replace(right, lse=torch.where(right.lse == -torch.inf, right.lse, right.lse + off))

    return patched(design=SPLIT, request=remember, finish=export)


def _centred_keys(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """K less its mean: o is right, lse lacks c <q, mean>."""
    if not request.s_k:
        return o, lse
    group = len(request.q) // len(request.k)
    mean = request.k.to(lse.dtype).mean(1).repeat_interleave(group, 0)
    return o, lse - request.scale * (request.q.to(lse.dtype) * mean[:, None]).sum(-1)


def _padded_to_32(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Rows padded to a multiple of 32 for every head, flattened and cut."""
    H, s_q = lse.shape
    padded = torch.zeros(H, -(-s_q // 32) * 32, dtype=lse.dtype)
    padded[:, :s_q] = lse
    return o, padded.flatten()[: H * s_q].view(H, s_q)


def _half_the_columns(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Partials of long requests are stored at one stride and read at another."""
    if request.s_k < LATE:
        return o, lse
    o = o.clone()
    o[..., o.shape[-1] // 2 :] = torch.nan
    return o, lse


def _returned(change: Callable[..., Any], **more: Any) -> Make:
    return lambda _: AttentionPatch(returned=change, **more)


def _combined(change: Callable[..., Any]) -> Make:
    return lambda _: patched(design=SPLIT, combine=change)


_fault = partial(Fault, dtypes=EVERY, stage="combine", operator="mla_decode", outputs=("o", "lse"))
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-C1", kind="B", title="splits that were skipped are merged",
           reference="vllm-project/vllm#47188, ROCm/rocMLIR#2371",
           trigger="fewer keys than four blocks of 16",
           patch=_combined(partial(_scratch_merged, o=0.5, lse=-1.0))),
    _fault(id="attention-C2", kind="B", title="lse laid out for swapped groups",
           reference="vllm-project/flash-attention#87", trigger="H != s_q, both above 1",
           outputs=("lse",), stage="lse", patch=_returned(_heads_and_rows_swapped, design=SPLIT)),
    _fault(id="attention-C3", kind="B",
           title="lse of partials read at another pitch than it was written at",
           reference="Dao-AILab/flash-attention#2388", trigger="rows that are no multiple of 8",
           patch=_combined(_other_pitch)),
    _fault(id="attention-C4", kind="B", title="rows of o stored by the wrong stride",
           reference="FlagOpen/FlagGems#5235", trigger="more than one query token", outputs=("o",),
           patch=lambda _: AttentionPatch(design=SPLIT, decode=_rows_apart)),
    _fault(id="attention-C5", kind="A", title="lse is that of the last split",
           reference="flashinfer-ai/flashinfer#58", trigger="more than one split", outputs=("lse",),
           stage="lse", patch=_combined(_last_split)),
    _fault(id="attention-C6", kind="A", title="tiles that were not split return no lse",
           reference="ROCm/aiter#3606", trigger="requests of at most 64 keys", outputs=("lse",),
           stage="lse", patch=_returned(_unsplit_left_out)),
    _fault(id="attention-C7", kind="B", title="buffers of inactive splits are merged uninitialised",
           reference="ROCm/aiter#3069, infinigence/ApxInf#82",
           trigger="fewer keys than four blocks of 16",
           patch=_combined(partial(_scratch_merged, o=torch.nan, lse=2.0))),
    _fault(id="attention-C8", kind="A", title="an empty part is merged as if it had all mass",
           reference="vllm-project/vllm#15492, Dao-AILab/flash-attention#978",
           operator="merge_state", trigger="an empty part beside a full one",
           patch=lambda _: AttentionPatch(merge=_infinite_mass)),
    _fault(id="MERGE-strides", kind="B",
           title="the second state is read with the strides of the first",
           reference="local-inference-lab/vllm#17", operator="merge_state",
           trigger="two states of different strides", outputs=("o",),
           patch=lambda _: AttentionPatch(merge=_strides_of_a)),
    _fault(id="attention-C9", kind="A", title="rows without keys return a finite lse and stale o",
           reference="flashinfer-ai/flashinfer#4452, vllm-project/vllm#49294",
           trigger="a row that sees no key", stage="partial", patch=_returned(_marked_finite)),
    _fault(id="attention-C10", stage="partial", kind="B",
           title="o and lse of empty requests stay as allocated",
           reference="sgl-project/sglang#22688, flashinfer-ai/flashinfer#3047",
           trigger="a request without keys", patch=_returned(_left_as_allocated)),
    _fault(id="attention-C11", stage="partial", kind="A",
           title="the exported maximum has another scale than the sum",
           reference="NVIDIA/TensorRT-LLM#19112",
           trigger="a scale other than d_k^-1/2, or of another d_k",
           patch=lambda _: _other_scale_of_the_maximum()),
    _fault(id="attention-C12", kind="A", title="K centred by its mean, lse not compensated",
           reference="ROCm/aiter#3334", trigger="any call", outputs=("lse",), stage="lse",
           patch=_returned(_centred_keys)),
    _fault(id="attention-C14", kind="B", title="lse padded to 32 rows is taken as dense",
           reference="feifeibear/long-context-attention#122", operator="attention",
           trigger="more than one head, s_q no multiple of 32", outputs=("lse",), stage="lse",
           patch=_returned(_padded_to_32)),
    _fault(id="attention-C15", kind="B",
           title="partials stored and read with different strides (emulated: from 256 keys)",
           reference="hipfire#264", trigger="256 keys or more", outputs=("o",),
           patch=_returned(_half_the_columns)),
    _fault(id="TREE-odd", kind="A", title="the odd split of a later level has the LSE of a pair",
           reference="class: trees of splits",
           trigger="more than 1,024 keys, of which the last of five splits has the most weight",
           patch=lambda _: _odd_part_of_a_tree()),
    _fault(id="MERGE-near", kind="A", title=f"parts less than {NEARLY:g} apart are averaged",
           reference="class: merges of states", operator="merge_state", dtypes=("fp32",),
           trigger="parts whose LSE are nearly equal", patch=lambda _: AttentionPatch(
               merge=_near_averaged)),
    _fault(id="MERGE-floor", kind="A", title=f"the running maximum of parts starts at {FLOOR:g}",
           reference="flashinfer-ai/flashinfer#5262", operator="merge_state",
           trigger="parts whose LSE are below it", patch=lambda _: AttentionPatch(
               merge=_from_a_finite_maximum)),
)  # fmt: skip
