"""A port of FLA's backward to plain torch, beside the forward's:
those that it calls, and those that stand apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.adapters.fla.torch_port import (
    Offsets,
    chunk_gated_delta_rule_fwd_h,
    chunk_gla_fwd_o_gk,
    chunk_kda_fwd_intra,
    chunk_local_cumsum,
    recompute_w_u_fwd,
    sequences,
    spans,
    wide,
)

__all__ = [
    "chunk_gated_delta_rule_fwd_h",
    "chunk_gla_fwd_o_gk",
    "chunk_kda_fwd_intra",
    "chunk_local_cumsum",
    "recompute_w_u_fwd",
]


def heads_first(x: Tensor) -> Tensor:
    return x.float().transpose(0, 1)


def tokens_first(x: Tensor, like: torch.dtype = torch.float) -> Tensor:
    return x.transpose(0, 1).to(like)


def chunk_kda_bwd_dAv(  # FLA's name
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    A: Tensor,
    *,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    dA = chunk_gla_bwd_dA(v, do, scale, cu_seqlens=cu_seqlens, chunk_size=chunk_size)
    return dA, chunk_bwd_dv_local(q, k, do, A=A, cu_seqlens=cu_seqlens, chunk_size=chunk_size)


def chunk_bwd_dv_local(
    q: Tensor, k: Tensor, do: Tensor, *, A: Tensor, cu_seqlens: Offsets = None, chunk_size: int = 64
) -> Tensor:
    dv = torch.zeros_like(do)
    for b, t in spans(do, chunk_size, cu_seqlens):
        inside = heads_first(A[b, t])[..., : t.stop - t.start].tril()
        dv[b, t] = tokens_first(inside.transpose(1, 2) @ heads_first(do[b, t]), do.dtype)
    return dv


def chunk_gla_bwd_dA(  # FLA's name
    v: Tensor, do: Tensor, scale: float, *, cu_seqlens: Offsets = None, chunk_size: int = 64
) -> Tensor:
    dA = torch.zeros(*v.shape[:3], chunk_size)
    for b, t in spans(v, chunk_size, cu_seqlens):
        scores = scale * heads_first(do[b, t]) @ heads_first(v[b, t]).transpose(1, 2)
        dA[b, t, :, : t.stop - t.start] = tokens_first(scores.tril())
    return dA


def chunk_gated_delta_rule_bwd_dhu(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    do: Tensor,
    dv: Tensor,
    *,
    gk: Tensor,
    h0: Tensor | None = None,
    dht: Tensor,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None, Tensor]:
    order, dv2 = spans(q, chunk_size, cu_seqlens), torch.zeros_like(dv)
    dh = torch.zeros(len(order), *dht.shape[1:], dtype=q.dtype)
    before: list[Tensor] = []
    for n, (b, first, end) in enumerate(sequences(q.shape[0], q.shape[1], cu_seqlens)):
        dS = dht[n].float()
        for i in reversed(range(first, end, chunk_size)):
            t = slice(i, min(i + chunk_size, end))
            dh[order.index((b, t))] = dS.to(q.dtype)
            dv2[b, t] = tokens_first(
                heads_first(dv[b, t]) + heads_first(k[b, t]) @ dS.to(q.dtype).float(), dv.dtype
            )
            read = scale * heads_first(q[b, t]).transpose(1, 2) @ heads_first(do[b, t])
            dS = (
                gk[b, t.stop - 1].exp2()[..., None] * dS
                + read
                - heads_first(w[b, t]).transpose(1, 2) @ heads_first(dv2[b, t])
            )
        before.append(dS)
    return dh.unflatten(0, (q.shape[0], -1)), None if h0 is None else torch.stack(before), dv2


def chunk_kda_bwd_dqkwg(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    v: Tensor,
    *,
    h: Tensor,
    g: Tensor,
    do: Tensor,
    dh: Tensor,
    dv: Tensor,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, ...]:
    dq, dk, dg, dw = (
        torch.zeros_like(g),
        torch.zeros_like(g),
        torch.zeros_like(g),
        torch.zeros_like(w),
    )
    states, after = h.flatten(0, 1).float(), dh.flatten(0, 1).float()
    for n, (b, t) in enumerate(spans(g, chunk_size, cu_seqlens)):
        G, qc, kc = heads_first(g[b, t]), wide(q[b, t], g.shape[2]), wide(k[b, t], g.shape[2])
        from_o = scale * G.exp2() * (heads_first(do[b, t]) @ states[n].transpose(1, 2))
        from_h = (G[:, -1:] - G).exp2() * (heads_first(v[b, t]) @ after[n].transpose(1, 2))
        ends = G[:, -1].exp2() * (states[n] * after[n]).sum(-1) + (kc * from_h).sum(1)
        gate = qc * from_o - kc * from_h
        gate[:, -1] += ends
        dq[b, t], dk[b, t], dg[b, t] = (
            tokens_first(from_o),
            tokens_first(from_h),
            tokens_first(gate),
        )
        dw[b, t] = tokens_first(-heads_first(dv[b, t]) @ states[n].transpose(1, 2), w.dtype)
    return dq, dk, dw, dg


def prepare_wy_repr_bwd(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    gk: Tensor,
    *,
    A: Tensor,
    dk: Tensor,
    dw: Tensor,
    du: Tensor,
    dg: Tensor,
    cu_seqlens: Offsets = None,
) -> tuple[Tensor, ...]:
    dk2, dg2, dv, db, dA = (
        dk.clone(),
        dg.clone(),
        torch.zeros_like(v),
        torch.zeros(beta.shape),
        torch.zeros(A.shape),
    )
    for b, t in spans(gk, A.shape[-1], cu_seqlens):
        size, bc = t.stop - t.start, beta[b, t].float().t()[..., None]
        X = heads_first(A[b, t])[..., :size].transpose(1, 2)
        kg = wide(k[b, t], gk.shape[2]) * heads_first(gk[b, t]).exp2()
        dkb, dvb = X @ heads_first(dw[b, t]), X @ heads_first(du[b, t])
        dv[b, t] = tokens_first(bc * dvb, v.dtype)
        db[b, t] = ((dvb * heads_first(v[b, t])).sum(-1) + (dkb * kg).sum(-1)).t()
        dk2[b, t] += tokens_first(bc * dkb * heads_first(gk[b, t]).exp2())
        dg2[b, t] += tokens_first(bc * dkb * kg)
        dX = heads_first(du[b, t]) @ (bc * heads_first(v[b, t])).transpose(1, 2) + heads_first(
            dw[b, t]
        ) @ (bc * kg).transpose(1, 2)
        dA[b, t, :, :size] = tokens_first(-(X @ dX.tril(-1) @ X).tril(-1))
    return dk2, dv, db, dg2, dA


def chunk_kda_bwd_wy_dqkg_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    v_new: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor,
    h: Tensor,
    do: Tensor,
    dh: Tensor,
    dv: Tensor,
    scale: float,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, ...]:
    walk: dict[str, Any] = {"scale": scale, "cu_seqlens": cu_seqlens, "chunk_size": chunk_size}
    dq, dk, dw, dg = chunk_kda_bwd_dqkwg(
        q, k, torch.empty(g.shape, dtype=k.dtype), v_new, h=h, g=g, do=do, dh=dh, dv=dv, **walk
    )
    dk, dv, db, dg, dA = prepare_wy_repr_bwd(
        k, v, beta, g, A=A, dk=dk, dw=dw, du=dv, dg=dg, cu_seqlens=cu_seqlens
    )
    return dq, dk, dv, db, dg, dA


def chunk_kda_bwd_intra(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    dAqk: Tensor,
    dAkk: Tensor,
    dq: Tensor,
    dk: Tensor,
    db: Tensor,
    dg: Tensor,
    cu_seqlens: Offsets = None,
    chunk_size: int = 64,
) -> tuple[Tensor, ...]:
    dq, dk, db, dg = (x.clone() for x in (dq, dk, db, dg))
    for b, t in spans(g, chunk_size, cu_seqlens):
        size, G, bc = t.stop - t.start, heads_first(g[b, t]), beta[b, t].float().t()[..., None]
        qc, kc = wide(q[b, t], g.shape[2]), wide(k[b, t], g.shape[2])
        decay = torch.exp2((G[:, :, None] - G[:, None]).clamp(max=0))
        of_q, of_k = (heads_first(x[b, t])[..., :size].tril() for x in (dAqk, dAkk))
        row_q, row_k = (torch.einsum("hij,hjd,hijd->hid", x, kc, decay) for x in (of_q, of_k))
        column = sum(
            torch.einsum("hij,hid,hijd->hjd", x, y, decay) for x, y in ((of_q, qc), (of_k, bc * kc))
        )
        assert isinstance(column, Tensor)
        db[b, t] += (row_k * kc).sum(-1).t()
        dq[b, t] += tokens_first(row_q)
        dk[b, t] += tokens_first(bc * row_k + column)
        dg[b, t] += tokens_first(qc * row_q + (bc * row_k - column) * kc)
    return dq, dk, db, dg
