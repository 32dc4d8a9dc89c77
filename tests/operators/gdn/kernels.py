"""Gated DeltaNet and DeltaNet as a user would port them, in plain torch with the public decorator,
right and wrong.

A fault is a subclass that overrides one step. EXPECTED in test_planted_faults.py names the property
that must reject each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import kdaverify as kv

CHUNK = 64
Outputs = tuple[Tensor, Tensor]


def spans(v: Tensor, offsets: Tensor | None) -> Iterator[tuple[int, int, int]]:
    """(row, first token, end) of every sequence."""
    if offsets is None:
        yield from ((row, 0, v.shape[1]) for row in range(v.shape[0]))
    else:
        yield from ((0, first, end) for first, end in pairwise(offsets.tolist()))


class Port:
    """What both forms share: sequences, heads, conversions. Subclasses run one sequence."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> Outputs:
        wide = [x.float() for x in (q, k, v, self.gate(g), beta)]
        groups = v.shape[2] // q.shape[2]
        wide[0], wide[1] = self.grouped(wide[0], groups), self.grouped(wide[1], groups)
        rows, finals = torch.zeros_like(wide[2]), list[Tensor]()
        placed = list[Tensor]()
        for n, (row, first, end) in enumerate(spans(v, options.get("cu_seqlens"))):
            one = [x[row, first:end].transpose(0, 1) for x in wide]
            start = options.get("initial_state")
            before = (
                one[2].new_zeros(v.shape[2], q.shape[3], v.shape[3])
                if start is None
                else start[n].float()
            )
            o, final = self.sequence(*one, scale=options["scale"], state=before)
            placed.append(o.transpose(0, 1))
            finals.append(final.clone())
        if options.get("cu_seqlens") is None:
            rows = torch.stack(placed)
        else:
            used = torch.cat(placed)
            rows = torch.cat((used, rows[0, len(used) :]))[None]
        return rows.to(v.dtype), torch.stack(finals)

    def gate(self, g: Tensor) -> Tensor:
        return g

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        return x.repeat_interleave(groups, 2)

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        """[HV, T, ...] each."""
        raise NotImplementedError


class Token(Port):
    """The definition, in fp32."""

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        out = [torch.zeros_like(v[:, :0])]
        for t in range(v.shape[1]):
            state = self.step(state, k[:, t], v[:, t], g[:, t, None, None], beta[:, t, None])
            out.append(scale * torch.einsum("hk,hkv->hv", q[:, t], state)[:, None])
        return torch.cat(out, 1), state

    def step(self, state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        state = state * self.decay(g, state)
        return state + k[..., None] * (beta * (v - torch.einsum("hk,hkv->hv", k, state)))[:, None]

    def decay(self, g: Tensor, state: Tensor) -> Tensor:
        return g.exp().expand(-1, state.shape[1], 1)


class Chunked(Port):
    """Chunks of 64 with exponentials of differences;
    what is stored between stages is in the inputs' format.
    """

    def __init__(self, storage: torch.dtype = torch.float32) -> None:
        self.storage = storage

    def store(self, x: Tensor) -> Tensor:
        return x.to(self.storage).float()

    def sequence(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        out = [torch.zeros_like(v[:, :0])]
        for first in range(0, v.shape[1], CHUNK):
            o, state = self.chunk(
                *(x[:, first : first + CHUNK] for x in (q, k, v, g, beta)), scale=scale, state=state
            )
            out.append(o)
        return torch.cat(out, 1), state

    def chunk(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        state: Tensor,
    ) -> Outputs:
        hard = g.isneginf()
        resets, G = hard.long().cumsum(-1), g.masked_fill(hard, 0.0).cumsum(-1)
        between = self.between(G, resets)
        from_start = torch.where(resets == 0, G, -torch.inf).exp()
        A = (beta[..., None] * (k @ k.mT) * between).tril(-1)
        R = self.store(self.inverse(A))
        w = self.store(R @ self.store(beta[..., None] * k * from_start[..., None]))
        u = self.store(R @ self.store(beta[..., None] * v))
        new = u - w @ self.store(state)
        scores = self.store(((q @ k.mT) * between).tril())
        o = scale * (from_start[..., None] * (q @ self.store(state)) + scores @ self.store(new))
        return o, self.carried(state, from_start) + k.mT @ self.store(self.to_end(new, G, resets))

    def between(self, G: Tensor, resets: Tensor) -> Tensor:
        causal = torch.ones(G.shape[-1], G.shape[-1], dtype=torch.bool).tril()
        unbroken = (resets[..., :, None] == resets[..., None, :]) & causal
        return torch.where(unbroken, G[..., :, None] - G[..., None, :], -torch.inf).exp()

    def inverse(self, A: Tensor) -> Tensor:
        one = torch.eye(A.shape[-1]).expand_as(A)
        return torch.linalg.solve_triangular(A, one, upper=False, unitriangular=True)

    def carried(self, state: Tensor, from_start: Tensor) -> Tensor:
        return state * from_start[:, -1, None, None]

    def to_end(self, new: Tensor, G: Tensor, resets: Tensor) -> Tensor:
        return (
            new
            * torch.where(resets == resets[..., -1:], G[..., -1:] - G, -torch.inf).exp()[..., None]
        )


def port(run: Port, name: str, **declared: Any) -> Any:
    """A port behind the decorator, with one gate a head by default."""
    options: dict[str, Any] = {"gates": "head", "packing": "cu_seqlens", "name": name} | declared
    if options["gates"] == "none":

        @kv.kernel(**options)
        def delta(
            q: Any, k: Any, v: Any, beta: Any, *, scale: Any, initial_state: Any, cu_seqlens: Any
        ) -> Outputs:
            return run(
                q,
                k,
                v,
                torch.zeros_like(beta),
                beta,
                scale=scale,
                initial_state=initial_state,
                cu_seqlens=cu_seqlens,
            )

        return delta

    @kv.kernel(**options)
    def gated(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: Any,
        initial_state: Any,
        cu_seqlens: Any,
    ) -> Outputs:
        return run(
            q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens
        )

    return gated


def fp32(run: type[Port], **declared: Any) -> Any:
    contract = "recurrent-fp32" if issubclass(run, Token) else "chunk64-fp32"
    return port(run(), run.__name__, contract=contract, **declared)


class AlphaTiled(Token):
    """Alpha instead of its logarithm, tiled heads, the state transposed:
    conventions of other engines.
    """

    def decay(self, g: Tensor, state: Tensor) -> Tensor:
        return g.expand(-1, state.shape[1], 1)

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        return x.repeat(1, 1, groups, 1)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> Outputs:
        start = options.pop("initial_state")
        o, final = super().__call__(
            q, k, v, g, beta, initial_state=None if start is None else start.mT, **options
        )
        return o, final.mT


TILED = {"gate": "decay", "heads": "tiled", "state": "vk"}
right_token = fp32(Token)
right_chunk = fp32(Chunked)
right_bf16 = port(Chunked(torch.bfloat16), "right_bf16", contract="chunk64-bf16", dtypes=("bf16",))
right_scalar = port(
    Chunked(torch.bfloat16), "right_scalar", contract="chunk64-bf16[decay:scalar]", dtypes=("bf16",)
)
right_tiled = port(AlphaTiled(), "right_tiled", contract="recurrent-fp32", **TILED)
right_delta = port(Token(), "right_delta", contract="recurrent-fp32", gates="none")
right_delta_chunk = port(Chunked(), "right_delta_chunk", contract="chunk64-fp32", gates="none")
