"""A port of FLA's stage functions to plain torch, as somebody else would write it: loops over
chunks, gates in base 2.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Offsets = Tensor | None


def sequences(B: int, T: int, cu_seqlens: Offsets) -> list[tuple[int, int, int]]:
    """(batch entry, first token, end) of every sequence."""
    offsets = [0, T] if cu_seqlens is None else cu_seqlens.tolist()
    return [(b, first, end) for b in range(B) for first, end in pairwise(offsets)]


def spans(like: Tensor, chunk_size: int, cu_seqlens: Offsets) -> list[tuple[int, slice]]:
    """(batch entry, tokens) of every chunk."""
    whole = sequences(like.shape[0], like.shape[1], cu_seqlens)
    return [
        (b, slice(i, min(i + chunk_size, end)))
        for b, first, end in whole
        for i in range(first, end, chunk_size)
    ]


def wide(x: Tensor, heads: int) -> Tensor:
    """Key heads repeated for their value heads, in fp32, heads first."""
    return x.float().repeat_interleave(heads // x.shape[1], dim=1).transpose(0, 1)


def chunk_local_cumsum(
    g: Tensor,
    chunk_size: int,
    *,
    scale: float | None = None,
    cu_seqlens: Offsets = None,
    output_dtype: Any = torch.float,
    reverse: bool = False,
) -> Tensor:
    out = torch.empty_like(g, dtype=output_dtype)
    for b, t in spans(g, chunk_size, cu_seqlens):
        rows = g[b, t].float()
        out[b, t] = (rows.flip(0).cumsum(0).flip(0) if reverse else rows.cumsum(0)) * (
            1.0 if scale is None else scale
        )
    return out


def chunk_kda_fwd_intra(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor,
    beta: Tensor,
    *,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, ...]:
    HV = gk.shape[2]
    Aqk, A = (
        torch.empty(*gk.shape[:3], chunk_size, dtype=k.dtype),
        torch.zeros(*gk.shape[:3], chunk_size, dtype=k.dtype),
    )
    for b, t in spans(gk, chunk_size, cu_seqlens):
        size = t.stop - t.start
        qc, kc, G = wide(q[b, t], HV), wide(k[b, t], HV), gk[b, t].transpose(0, 1)
        decay = torch.exp2((G[:, :, None] - G[:, None]).clamp(max=0))
        scores = (scale * torch.einsum("hid,hjd,hijd->hij", qc, kc, decay)).tril()
        L = (
            beta[b, t].float().t()[..., None] * torch.einsum("hid,hjd,hijd->hij", kc, kc, decay)
        ).tril(-1)
        R = torch.linalg.solve_triangular(
            L, torch.eye(size).expand_as(L), upper=False, unitriangular=True
        )
        Aqk[b, t, :, :size], A[b, t, :, :size] = (
            scores.transpose(0, 1).to(k.dtype),
            R.transpose(0, 1).to(k.dtype),
        )
    return *recompute_w_u_fwd(k, v, beta, A, gk, q=q, cu_seqlens=cu_seqlens), Aqk, A


def recompute_w_u_fwd(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    A: Tensor,
    gk: Tensor,
    *,
    q: Tensor,
    cu_seqlens: Offsets = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    w, qg, kg = (torch.empty(gk.shape, dtype=k.dtype) for _ in range(3))
    u, HV = torch.empty_like(v), gk.shape[2]
    for b, t in spans(gk, A.shape[-1], cu_seqlens):
        G, R, kc = (
            gk[b, t].transpose(0, 1),
            A[b, t, :, : t.stop - t.start].transpose(0, 1).float(),
            wide(k[b, t], HV),
        )
        bc = beta[b, t].float().t()[..., None]
        w[b, t] = (R @ (bc * kc * G.exp2()).to(k.dtype).float()).transpose(0, 1).to(k.dtype)
        u[b, t] = (
            (R @ (bc * v[b, t].transpose(0, 1)).to(k.dtype).float()).transpose(0, 1).to(k.dtype)
        )
        qg[b, t] = (wide(q[b, t], HV) * G.exp2()).transpose(0, 1).to(k.dtype)
        kg[b, t] = (kc * (G[:, -1:] - G).exp2()).transpose(0, 1).to(k.dtype)
    return w, u, qg, kg


def chunk_gated_delta_rule_fwd_h(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    gk: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    cu_seqlens: Offsets = None,
) -> tuple[Tensor, Tensor, Tensor]:
    assert output_final_state
    whole = sequences(gk.shape[0], gk.shape[1], cu_seqlens)
    h, finals, v_new = list[Tensor](), list[Tensor](), torch.empty_like(u)
    for n, (b, first, end) in enumerate(whole):
        state = (
            torch.zeros(gk.shape[2], k.shape[-1], u.shape[-1])
            if initial_state is None
            else initial_state[n]
        )
        for i in range(first, end, chunk_size):
            t = slice(i, min(i + chunk_size, end))
            h.append(state.to(k.dtype))
            new = u[b, t].transpose(0, 1).float() - w[b, t].transpose(0, 1).float() @ h[-1].float()
            v_new[b, t] = new.transpose(0, 1).to(u.dtype)
            state = (
                gk[b, t.stop - 1].exp2()[..., None] * state
                + k[b, t].permute(1, 2, 0).float() @ v_new[b, t].transpose(0, 1).float()
            )
        finals.append(state.clone())
    return torch.stack(h).unflatten(0, (gk.shape[0], -1)), v_new, torch.stack(finals)


def chunk_gla_fwd_o_gk(
    q: Tensor,
    v: Tensor,
    g: Tensor,
    A: Tensor,
    h: Tensor,
    *,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> Tensor:
    o, states = torch.zeros_like(v), h.flatten(0, 1).float()
    for n, (b, t) in enumerate(spans(v, chunk_size, cu_seqlens)):
        qg = (wide(q[b, t], v.shape[2]) * g[b, t].transpose(0, 1).exp2()).to(q.dtype).float()
        inside = (
            A[b, t, :, : t.stop - t.start].transpose(0, 1).float().tril()
            @ v[b, t].transpose(0, 1).float()
        )
        o[b, t] = (scale * qg @ states[n] + inside).transpose(0, 1).to(v.dtype)
    return o
