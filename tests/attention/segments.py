"""Small segments, and the textbook's formula for them."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.attention.segment import Segment
from oracles.enclosure import Enclosure


def segment(
    *, std: float = 1.0, H: int = 4, h_kv: int = 2, s_q: int = 3, s_k: int = 70, d_k: int = 24,
    d_v: int = 16, dtype: torch.dtype = torch.float64, seed: int = 0, empty: bool = True
) -> Segment:  # fmt: skip
    """Causal, bottom-right aligned; the first query sees no key where `empty`."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    visible = torch.arange(s_k) <= torch.arange(s_q)[:, None] + s_k - s_q
    visible[:1] &= not empty
    q, k, v = std * normal(H, s_q, d_k), normal(h_kv, s_k, d_k), normal(h_kv, s_k, d_v)
    return Segment(q.to(dtype), k.to(dtype), v.to(dtype), d_k**-0.5, visible)


def textbook(given: Segment) -> tuple[Tensor, Tensor]:
    """softmax(S) V and logsumexp in one piece, in float64."""
    group = len(given.q) // len(given.k)
    q, k, v = (x.double() for x in (given.q, given.k, given.v))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    S = (q @ k.mT * given.scale).masked_fill(~given.visible, -torch.inf)
    lse = S.logsumexp(-1)
    safe = torch.where(lse == -torch.inf, torch.zeros_like(lse), lse)
    return torch.exp(S - safe[..., None]) @ v, lse


def enclosed(x: Tensor) -> Enclosure:
    finite = x.double().masked_fill(torch.isinf(x), 0.0)
    return Enclosure(finite, torch.zeros_like(finite), finite.abs() * 2.0**-45, finite == 0)
