"""What a stand-in does: AscendC's host checks and conventions, by hand, around `eager`; each
convention can be wrong on its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER, EAGER_RECURRENT
from oracles.inputs import Inputs

LAYOUTS = ("BSND", "BNSD", "TND", "NTD")
Order = Literal["as given", "other"]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What the operators really do.

    Args:
        gate: natural, log2, summed log2, summed natural, or decay.
        o_as_inputs: o comes in the layout of the inputs.
        square: widths are 64 or 128, K = V.
        layout: read instead of the one that is passed.
        start, final: order of the initial and the final state.
        beta: value, logit or doubled.
        scale: once, twice, ignored or fixed.
        key_heads: grouped or interleaved.
        normalizes: q and k, inside.
        o: fresh, or written over v.
        edits: the input that is edited in place.
        pool: slots that recurrent_kda writes: hit, or the next one.
    """

    gate: str = "natural"
    o_as_inputs: bool = False
    square: bool = False
    layout: str | None = None
    start: Order = "as given"
    final: Order = "as given"
    beta: str = "value"
    scale: str = "once"
    key_heads: str = "grouped"
    normalizes: bool = False
    o: str = "fresh"
    edits: str | None = None
    pool: str = "hit"

    def inputs(self, tokens: Sequence[Tensor], *, scale: float, state: Any, offsets: Any) -> Inputs:
        """The call that is computed, from q, k, v, g and beta in BSND."""
        q, k, v, g, beta = tokens
        if self.key_heads == "interleaved":
            q, k = (x.repeat(1, 1, v.shape[2] // x.shape[2], 1) for x in (q, k))
        if self.normalizes:
            q, k = (torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype) for x in (q, k))
        beta = {"value": beta, "logit": beta.sigmoid(), "doubled": 2 * beta}[self.beta]
        factor = {"once": scale, "twice": scale**2, "ignored": 1.0, "fixed": q.shape[3] ** -0.5}[
            self.scale
        ]
        return Inputs(
            q,
            k,
            v,
            self._natural(g, offsets),
            beta,
            factor,
            state,
            None if offsets is None else torch.tensor(offsets),
        )

    def _natural(self, g: Tensor, offsets: Any) -> Tensor:
        if self.gate == "decay":
            return g.log()
        unit = math.log(2) if "log2" in self.gate else 1.0
        g = g.double() * unit
        if not self.gate.startswith("summed"):
            return g.float()
        one, offsets = g.clone(), (0, g.shape[1]) if offsets is None else offsets
        for start, end in pairwise(offsets):
            for t in range(start, end):
                if (t - start) % 64:
                    one[:, t] = g[:, t] - g[:, t - 1]
        return one


def chunk(
    does: Behaviour, tokens: Sequence[Tensor], *, scale: float, chunk_size: int, **said: Any
) -> Any:
    """The twelve results of chunk_kda_fwd for q, k, v, gates and beta;
    only the first two are computed.
    """
    q, k, v, g, beta = tokens
    layout = does.layout or said["layout"]
    _check_host(does, tokens, chunk_size, said)
    bsnd = [_bsnd(x, layout) for x in tokens]
    start = _ordered(said["initial_state"], (does.start == "other") != said["state_v_first"])
    if start is not None:
        B, N = bsnd[0].shape[0], len(start)
        _need(
            (B if said["cu_seqlens"] is None else len(said["cu_seqlens"]) - 1) == N,
            "initial_state: wrong number of sequences",
        )
    result = _run(EAGER, does.inputs(bsnd, scale=scale, state=start, offsets=said["cu_seqlens"]))
    o = _laid_out(result.o, layout if does.o_as_inputs else "TND" if q.ndim == 3 else "BSND")
    if does.o == "over v":
        o = v.copy_(o)
    if does.edits is not None:
        {"q": q, "k": k, "v": v, "g": g, "beta": beta}[does.edits].mul_(0.5)
    final = _ordered(result.final_state, (does.final == "other") != said["state_v_first"])
    return (o, final, *(None,) * 9, said["initial_state"])


def recurrent(
    does: Behaviour, tokens: Sequence[Tensor], pool: Tensor, **said: Any
) -> tuple[Tensor, Any]:
    """The two results of recurrent_kda; the pool is written in place."""
    q, _, v, _, _ = tokens
    offsets, slots = said["cu_seqlens"], said["ssm_state_indices"]
    _need(
        q.dtype == torch.bfloat16 and q.shape[3] == 128 and v.shape[3] in (128, 256),
        "recurrent_kda: bf16, K=128, V=128 or 256",
    )
    _need(
        isinstance(offsets, Tensor) and isinstance(slots, Tensor),
        "recurrent_kda: cu_seqlens and ssm_state_indices are device tensors",
    )
    _need(
        bool((offsets.diff() <= 8).all()) and len(slots) >= int(offsets[-1]),
        "recurrent_kda: at most 8 tokens a sequence, a slot for each",
    )
    _need(said["inplace_final_state"], "recurrent_kda: only in place here")
    first = slots[offsets[:-1].long()].long()
    start = _ordered(pool[first], (does.start == "other") != said["state_v_first"])
    result = _run(
        EAGER_RECURRENT, does.inputs(tokens, scale=said["scale"], state=start, offsets=None)
    )
    written = _ordered(result.final_state, (does.final == "other") != said["state_v_first"])
    pool[first + (does.pool == "next")] = written
    return result.o, pool if said["output_final_state"] else None


def _check_host(does: Behaviour, tokens: Sequence[Tensor], chunk_size: int, said: Any) -> None:
    q, k, v, g, beta = tokens
    layout, offsets = said["layout"], said["cu_seqlens"]
    _need(
        layout in LAYOUTS and q.ndim == (3 if layout in ("TND", "NTD") else 4),
        f"layout {layout} with rank {q.ndim}",
    )
    _need(
        q.shape == k.shape and g.ndim == q.ndim == v.ndim == beta.ndim + 1,
        "q and k must have identical shape",
    )
    _need(
        q.dtype == k.dtype == v.dtype and q.dtype in (torch.float16, torch.bfloat16),
        f"q/k/v: {q.dtype}",
    )
    _need(
        all(x.dtype in (torch.float32, torch.bfloat16) for x in (g, beta)),
        "g and beta must be float32 or bfloat16",
    )
    _need(chunk_size in (64, 128), f"chunk_size {chunk_size}")
    K, V = q.shape[-1], v.shape[-1]
    _need(
        K == V and K in (64, 128) if does.square else K % 16 == V % 16 == 0,
        f"K={K}, V={V} not supported",
    )
    T = _bsnd(q, layout).shape[1]
    if offsets is None:
        _need(q.ndim == 4 and said["chunk_indices"] is None, "rank 3 needs cu_seqlens")
        return
    _need(
        isinstance(offsets, tuple) and all(isinstance(offset, int) for offset in offsets),
        "cu_seqlens must be host integers",
    )
    _need(
        offsets[0] == 0 and offsets[-1] == T and len(offsets) <= 1025,
        f"cu_seqlens {offsets} for {T} tokens",
    )
    canonical = [
        (n, c)
        for n, (a, b) in enumerate(pairwise(offsets))
        for c in range(-(-(b - a) // chunk_size))
    ]
    _need(
        list(said["chunk_indices"]) == [i for pair in canonical for i in pair],
        "chunk_indices must be in sequence-major order",
    )


def _need(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def _run(eager: Adapter, inputs: Inputs) -> Output:
    return eager.forward(inputs)


def _bsnd(x: Tensor, layout: str) -> Tensor:
    if layout in ("TND", "NTD"):
        x = x[None]
    return x.transpose(1, 2) if layout in ("BNSD", "NTD") else x


def _laid_out(o: Tensor, layout: str) -> Tensor:
    if layout in ("BNSD", "NTD"):
        o = o.transpose(1, 2).contiguous()
    return o[0] if layout in ("TND", "NTD") else o


def _ordered(state: Tensor | None, v_first: bool) -> Any:
    return state if state is None or not v_first else state.mT.contiguous()
