"""Ports whose backward is another pipeline than their forward, in plain torch: chunks with stored
states and a backward token by token from these; a recurrence with a backward in chunks; chunks in
16 bits with a backward by autograd in fp32 from the saved inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Edit = Callable[[Tensor], Tensor]
Call = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""q, k [HV, T, K], v [HV, T, V], g [HV, T, K], beta [HV, T], S_0 [HV, K, V], all fp32."""

Planted = tuple[str, Edit]
"""A tensor by name, and what is done to it."""

SIZE = 64


def same(x: Tensor) -> Tensor:
    return x


NOTHING: Planted = ("", same)


@dataclass(frozen=True)
class Mixture:
    """One such port.

    Args:
        narrow: the type of what its chunks store; None: fp32.
        forward, backward: "chunk" or "recurrent"; the recurrence back starts from the stored states
            of a forward in chunks, chunks back are autograd's in fp32.
        wrong: an edit of a tensor by name, planted in a twin.
    """

    forward: str
    backward: str
    narrow: torch.dtype | None = None
    wrong: Planted = NOTHING

    def store(self, name: str, x: Tensor) -> Tensor:
        rounded = x if self.narrow is None else x.to(self.narrow).float()
        return self.edit(name, rounded)

    def edit(self, name: str, x: Tensor) -> Tensor:
        return self.wrong[1](x) if name == self.wrong[0] else x


def chunked(call: Call, scale: float, store: Callable[[str, Tensor], Tensor]) -> tuple[Any, ...]:
    """o [HV, T, V], the state after, and the state before every chunk as it is stored."""
    q, k, v, g, beta, state = call
    outputs, states = list[Tensor](), list[Tensor]()
    for first in range(0, q.shape[1], SIZE):
        rows = slice(first, first + SIZE)
        qc, kc, vc, b = q[:, rows], k[:, rows], v[:, rows], beta[:, rows, None]
        total = g[:, rows].cumsum(1)
        lower = torch.ones(qc.shape[1], qc.shape[1], dtype=torch.bool).tril()[..., None]
        # exponents of pairs i >= j alone: the others are above 0
        pairs = torch.where(lower, total[:, :, None] - total[:, None], -torch.inf).exp()
        scores = scale * torch.einsum("hik,hjk,hijk->hij", qc, kc, pairs)
        system = (b * torch.einsum("hik,hjk,hijk->hij", kc, kc, pairs)).tril(-1)
        h = store("h", state)
        states.append(h)
        right = b * (vc - store("k_decayed", kc * total.exp()) @ h)
        one = torch.eye(qc.shape[1])
        new = store("v_new", torch.linalg.solve_triangular(one + system, right, upper=False))
        outputs.append(
            scale * store("qg", qc * total.exp()) @ h + store("Aqk", scores.tril()) @ new
        )
        last = total[:, -1:]
        kg = store("kg", kc * (last - total).exp())
        state = state * last.exp().transpose(1, 2) + kg.transpose(1, 2) @ new
    return torch.cat([*outputs, v[:, :0]], 1), state, states


def recurrent(call: Call, scale: float, edit: Callable[[str, Tensor], Tensor]) -> Pair:
    q, k, v, g, beta, state = call
    outputs = list[Tensor]()
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None].exp()
        u = beta[:, t, None] * (v[:, t] - (k[:, t, :, None] * state).sum(1))
        state = edit("S", state + k[:, t, :, None] * u[:, None])
        outputs.append(scale * (q[:, t, :, None] * state).sum(1))
    return torch.stack(outputs, 1) if outputs else v, state


def token_by_token(
    call: Call, scale: float, states: Sequence[Tensor], loss: Pair, mixture: Mixture
) -> tuple[Tensor, ...]:
    """Gradients from the last token to the first; the states of a chunk made again from the one
    before it.
    """
    q, k, v, g, beta, _ = call
    do, dS = loss
    dq, dk, dv, dg, db = (torch.zeros_like(x) for x in (q, k, v, g, beta))
    for n, before in reversed(list(enumerate(states))):
        rows = range(n * SIZE, min(q.shape[1], (n + 1) * SIZE))
        kept, state = list[tuple[Tensor, ...]](), before
        for t in rows:
            decayed = state * g[:, t, :, None].exp()
            left = v[:, t] - (k[:, t, :, None] * decayed).sum(1)
            state = decayed + k[:, t, :, None] * (beta[:, t, None] * left)[:, None]
            kept.append((decayed, left, state))
        for t in reversed(rows):
            decayed, left, state = kept[t - rows.start]
            dq[:, t] = scale * (state * do[:, t, None]).sum(2)
            dS = dS + scale * q[:, t, :, None] * do[:, t, None]
            du = (k[:, t, :, None] * dS).sum(1)
            dk[:, t] = (dS * (beta[:, t, None] * left)[:, None]).sum(2)
            dk[:, t] -= beta[:, t, None] * (decayed * du[:, None]).sum(2)
            dv[:, t], db[:, t] = beta[:, t, None] * du, mixture.edit("dbeta", (du * left).sum(1))
            dS = dS - beta[:, t, None, None] * k[:, t, :, None] * du[:, None]
            dg[:, t] = mixture.edit("dg", (dS * decayed).sum(2))
            dS = dS * g[:, t, :, None].exp()
        dS = mixture.edit("dS", dS)
    return mixture.edit("dq", dq), mixture.edit("dk", dk), mixture.edit("dv", dv), dg, db, dS


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixture: Mixture, scale: float, *call: Any) -> Pair:
        if mixture.forward == "chunk":
            o, state, states = chunked(call, scale, mixture.store)
            ctx.states = [mixture.edit("kept", before) for before in states]
        else:
            o, state = recurrent(call, scale, mixture.edit)
        ctx.save_for_backward(*call)
        ctx.mixture, ctx.scale = mixture, scale
        return o.clone(), state.clone()

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, do: Tensor, dS: Tensor
    ) -> Any:
        call, mixture = ctx.saved_tensors, ctx.mixture
        if mixture.backward == "recurrent":
            found = token_by_token(call, ctx.scale, ctx.states, (do, dS), mixture)
            return None, None, *found
        leaves: Any = tuple(x.detach().requires_grad_() for x in call)
        with torch.enable_grad():
            o, state, _ = chunked(leaves, ctx.scale, lambda _, x: x)
        found = torch.autograd.grad((o, state), leaves, (do, dS), materialize_grads=True)
        names = ("dq", "dk", "dv", "dg", "dbeta", "dS")
        return None, None, *(mixture.edit(*pair) for pair in zip(names, found, strict=True))


def run(mixture: Mixture, tokens: Sequence[Any], scale: float, *, states: Any, cuts: Any) -> Any:
    """(o, S_T) of a call in the canonical conventions, g of channels, of heads, or absent.

    Args:
        tokens: q, k, v, g or None, beta.
        states: initial ones, or None.
        cuts: offsets of a pack, or None.
    """
    q, k, v, g, beta = tokens
    heads, (K, V) = v.shape[2], (q.shape[3], v.shape[3])
    g = q.new_zeros(*v.shape[:3], K).float() if g is None else g
    g = g[..., None].expand(*g.shape, K) if g.ndim == 3 else g
    wide = [x.float() for x in (q, k, v, g, beta)]
    wide[:2] = [x.repeat_interleave(heads // q.shape[2], 2) for x in wide[:2]]
    flat = [x.flatten(0, 1).transpose(0, 1) for x in wide]
    cuts = [n * q.shape[1] for n in range(q.shape[0] + 1)] if cuts is None else cuts.tolist()
    states = v.new_zeros(len(cuts) - 1, heads, K, V).float() if states is None else states
    found = [
        _Sequence.apply(mixture, scale, *(x[:, first:end] for x in flat), state)
        for (first, end), state in zip(pairwise(cuts), states.float(), strict=True)
    ]
    padding = torch.zeros(heads, flat[0].shape[1] - cuts[-1], V)
    o = torch.cat([*(o for o, _ in found), padding], 1).transpose(0, 1).unflatten(0, v.shape[:2])
    return o.to(v.dtype), torch.stack([state for _, state in found])
