"""Faults that ports of attention have where their engineers seldom look: positions, logits, sizes
and sequences of calls that a test of one random problem does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Outputs,
    bottom_right,
)
from kdaverify.faults.fault import Fault, with_gradient

LONG, FEW, BLOCK, FAR, SENTINEL, RANGE = 1024, 8, 16, 10.0, -5e4, 88.0
"""Keys and queries of a route of decode; the size of a block, and how far below the maximum its
logits are not looked at; the maximum of no keys; where exp overflows in fp32."""
LARGEST: Final = 65504.0
"""The largest number of fp16."""
FEW_KEYS: Final = 4
TILE, LAG, VANISHING = 64, 8.0, -104.0
"""Rows and keys of a tile; powers of two that a maximum may lag by; where exp is 0 in fp32."""
Call = Callable[..., Any]


def _positions_in_bf16(request: KernelRequest) -> Tensor:
    i, j = (x.to(torch.bfloat16) for x in (
        torch.arange(request.s_q) + request.s_k - request.s_q, torch.arange(request.k.shape[1]),
    ))  # fmt: skip
    seen = torch.ones(len(i), len(j), dtype=torch.bool)
    return seen & (j <= i[:, None]) if request.causal else seen


def _other_heads_of_long_keys(request: KernelRequest) -> KernelRequest:
    if request.s_k < LONG or request.s_q > FEW:
        return request
    return replace(request, k=request.k.flip(0), v=request.v.flip(0))


def _sink_of_two_ranks(request: KernelRequest) -> KernelRequest:
    if request.sink is None or request.s_q > 1:
        return request
    return replace(request, sink=request.sink + torch.tensor(2.0).log())


def _logits(request: KernelRequest) -> Tensor:
    """[H, s_q, keys] -inf of keys that a query does not see."""
    group = len(request.q) // len(request.k)
    k = request.k.double().nan_to_num().repeat_interleave(group, 0)
    S = request.q.double() @ k.mT * request.scale
    return S.masked_fill(~bottom_right(request), -torch.inf)


def _without_far_blocks(request: KernelRequest) -> Tensor:
    """A block counts where the row of some head has a logit near its running maximum."""
    S, kept = _logits(request), bottom_right(request)
    top = S.new_full((*S.shape[:2], 1), -torch.inf)
    for first in range(0, S.shape[2], BLOCK):
        of_block = S[..., first : first + BLOCK].amax(-1, keepdim=True)
        if bool((of_block < top - FAR).all()):
            kept[:, first : first + BLOCK] = False
        top = torch.maximum(top, of_block)
    return kept


def _nothing_below(
    _: KernelRequest, o: Tensor, lse: Tensor, *, start: float, left: float
) -> Outputs:
    """Rows below where the maximum starts are taken for such without keys, of LSE `left`."""
    low = torch.isfinite(lse) & (lse < start)
    return o.masked_fill(low[..., None], 0.0), lse.masked_fill(low, left)


def _maximum_of_no_keys(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """Tiles are read from the last to the first. The maximum of a row that sees no key of a tile is
    0, and stays above logits whose exponentials vanish.
    """
    if not request.causal:
        return o, lse
    rows, most = torch.arange(request.s_q), request.s_k - 1
    last = rows + request.s_k - request.s_q
    of_tile = (last - rows % TILE + TILE - 1).clamp(max=most)
    lost = (of_tile // TILE > last // TILE) & (lse < VANISHING)
    return o.masked_fill(lost[..., None], 0.0), lse.masked_fill(lost, -torch.inf)


def _lag_adds_up(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """The maximum of a block is compared with the largest so far, not with the one in use."""
    S = _logits(request) / math.log(2.0)
    used = highest = S.new_full(S.shape[:2], -torch.inf)
    lost = torch.zeros_like(used, dtype=torch.bool)
    for block in S.split(TILE, -1):
        top = block.amax(-1)
        moves = (top > highest + LAG) | used.isneginf()
        highest = torch.maximum(highest, top)
        used = torch.where(moves, highest, used)
        lost |= top - used > math.log2(LARGEST)
    return o.masked_fill(lost[..., None], torch.nan), lse


def _few_keys_without_a_maximum(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """exp of what is above its range is infinite, and infinity by infinity is no number."""
    high = lse > (RANGE if request.k.shape[1] <= FEW_KEYS else torch.inf)
    return o.masked_fill(high[..., None], torch.nan), lse.masked_fill(high, torch.inf)


HOLDS: Final = 84.0
"""Below it exp is a number of fp32, with room for a sum of a hundred."""


def _in_range_without_a_maximum(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """Scores below 84 have exponentials in fp32, and hundreds of these have no sum."""
    below = lse - math.log(max(request.s_k, 1)) < HOLDS
    lost = below & (lse > RANGE)
    return o.masked_fill(lost[..., None], 0.0), lse.masked_fill(lost, torch.inf)


def _merge_stops_at_the_range_of_fp16(right: Call, given: dict[str, Any]) -> Outputs:
    """The weighted sum, before it is divided by the sum of the weights."""
    o, lse = right(**given)
    top = torch.maximum(given["lse_a"], given["lse_b"])
    limit = LARGEST / (lse - top).double().exp().nan_to_num(nan=1.0).mT[..., None]
    return torch.minimum(torch.maximum(o.double(), -limit), limit).to(o.dtype), lse


def _merge_out_of_range(right: Call, given: dict[str, Any]) -> Outputs:
    """lse_a + log(1 + exp(lse_b - lse_a))."""
    o, lse = right(**given)
    lost = given["lse_b"] - given["lse_a"] > RANGE
    lost &= torch.isfinite(given["lse_a"])
    return o.masked_fill(lost.mT[..., None], 0.0), lse.masked_fill(lost, torch.inf)


def _scale_of_the_first_call() -> AttentionPatch:
    """A compiled kernel is kept by shape and format, and its scale is a constant in it."""
    kept = dict[tuple[Any, ...], Any]()

    def attention(right: Call, given: dict[str, Any]) -> Any:
        key = (given["q"].shape, given["k"].shape, given["v"].shape, given["q"].dtype)
        scale = kept.setdefault(key, given["softmax_scale"])
        return right(**{**given, "softmax_scale": scale})

    return AttentionPatch(attention=attention)


def _saved_by_shape() -> AttentionPatch:
    """P of the backward is recomputed from the LSE of the latest call of a shape."""
    kept = dict[Any, Tensor]()

    def attention(right: Call, given: dict[str, Any]) -> Any:
        o, lse = right(**given)
        own = kept[lse.shape] = lse.detach()

        def change(do: Tensor) -> Tensor:
            moved = (own - kept[own.shape]).nan_to_num(0.0, 0.0, 0.0).exp()
            return (do * moved.transpose(-1, -2)[..., None]).to(do.dtype)

        return with_gradient(change, o), lse

    return AttentionPatch(attention=attention)


def _outputs_in_one_buffer() -> AttentionPatch:
    """A captured graph writes where it wrote before."""
    kept = dict[Any, Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        return tuple(
            kept.setdefault((name, x.shape, x.dtype), torch.empty_like(x)).copy_(x)
            for name, x in zip(("o", "lse"), right(**given), strict=True)
        )

    return AttentionPatch(decode=decode)


_fault = partial(Fault, dtypes=EVERY, reference="class: ports of attention", operator="attention",
                 outputs=("o", "lse"), stage="scores")  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="PORT-positions", kind="C", title="positions of the causal mask are in bf16",
           trigger="causal, more than 256 keys",
           patch=lambda _: AttentionPatch(visible=_positions_in_bf16)),
    _fault(
        id="PORT-route",
        kind="B",
        title=f"{FEW} queries and fewer over {LONG} keys and more read KV heads in another order",
        reference="ml-explore/mlx#4022",
        trigger="few queries, many keys, several KV heads",
        stage="gather",
        patch=lambda _: AttentionPatch(request=_other_heads_of_long_keys),
    ),
    _fault(id="PORT-sink", kind="A", title="with one query a request the sink counts on two ranks",
           trigger="one query a request, a sink", operator="mla_decode", stage="sink",
           outputs=("o",), patch=lambda _: AttentionPatch(request=_sink_of_two_ranks)),
    _fault(id="PORT-blocks", kind="A",
           title=f"blocks whose logits are {FAR:g} below the maximum are skipped",
           trigger="a peak, and many keys that together weigh something", outputs=("lse",),
           patch=lambda _: AttentionPatch(visible=_without_far_blocks)),
    _fault(id="PORT-sentinel", kind="C", title=f"the maximum starts at {SENTINEL:g}",
           reference="flashinfer-ai/flashinfer#4267", trigger="every logit of a row below it",
           stage="partial", patch=lambda _: AttentionPatch(
               returned=partial(_nothing_below, start=SENTINEL, left=SENTINEL))),
    _fault(id="PORT-start", kind="C", title="the maximum starts at -65504",
           reference="class: numbers that mark memory", trigger="every logit of a row below it",
           stage="partial", patch=lambda _: AttentionPatch(
               returned=partial(_nothing_below, start=-LARGEST, left=-torch.inf)),
           dtypes=("bf16", "fp32")),
    _fault(id="PORT-masked-tile", kind="C", title="a tile without a key leaves the maximum at 0",
           reference="Dao-AILab/flash-attention#2082", stage="partial",
           trigger="causal, rows that see no key of a later tile, all logits below -104",
           patch=lambda _: AttentionPatch(returned=_maximum_of_no_keys)),
    _fault(id="PORT-lag", kind="C", title="maxima lag by 8 powers of two, block after block",
           reference="class: rescaling that is put off", stage="partial", outputs=("o",),
           trigger="maxima that rise by less than 8 powers a block, by 16 in all", dtypes=("fp16",),
           patch=lambda _: AttentionPatch(returned=_lag_adds_up)),
    _fault(id="PORT-few", kind="A", title="up to four keys are taken without their maximum",
           reference="class: paths for few keys", trigger="four keys or fewer, logits above 88",
           stage="partial", patch=lambda _: AttentionPatch(returned=_few_keys_without_a_maximum)),
    _fault(id="PORT-range", kind="A", title="no maximum is subtracted where scores are below 84",
           reference="class: sums of exponentials", trigger="some 300 keys of logits near 83.5",
           stage="partial", patch=lambda _: AttentionPatch(returned=_in_range_without_a_maximum)),
    _fault(id="PORT-clamp", kind="C", title="the weighted sum of a merge stops at 65504",
           reference="class: ranges of 16 bits", trigger="fp16 values above 32,752 in both parts",
           operator="merge_state", stage="combine", outputs=("o",), dtypes=("fp16",),
           patch=lambda _: AttentionPatch(merge=_merge_stops_at_the_range_of_fp16)),
    _fault(id="PORT-merge", kind="A", title="exp of a difference of LSE overflows",
           reference="zhuzilin/ring-flash-attention#30",
           trigger=f"LSE of the second state more than {RANGE:g} above that of the first",
           operator="merge_state", stage="combine",
           patch=lambda _: AttentionPatch(merge=_merge_out_of_range)),
    _fault(id="PORT-scale", kind="E", title="a compiled kernel has the scale of its first call",
           trigger="two calls of one shape with different scales",
           patch=lambda _: _scale_of_the_first_call()),
    _fault(id="PORT-saved", kind="E",
           title="the backward reads LSE of the latest call of its shape",
           trigger="two forwards of one shape before the backward of the first", stage="dkv",
           outputs=("dq", "dk", "dv"), patch=lambda _: _saved_by_shape()),
    _fault(id="PORT-buffer", kind="E",
           title="outputs are the buffers of the latest call of its shape",
           trigger="a result that is kept over a later call", operator="mla_decode",
           stage="partial", patch=lambda _: _outputs_in_one_buffer()),
)  # fmt: skip
