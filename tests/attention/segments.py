"""Small segments, the textbook's formula for them, and errors of emulated kernels in tolerances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.ensemble import ReferenceKernel, kernel
from kdaverify.budgets.attention.reference import attention_reference
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.standard import Reference
from oracles.attention.design import OnlineDesign
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


def outputs_of(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {"o": parts[0][0], "lse": parts[0][1]}


def gradients_of(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return dict(zip(("dq", "dk", "dv"), parts[0], strict=True))


def reference_of(given: Segment, contract: str, dtype: str = "bf16") -> Reference:
    exact = {name: enclosed(x) for name, x in outputs_of([textbook(given)]).items()}
    declared = attention_contract(contract, FORMATS[dtype])
    return attention_reference([given], exact, outputs_of, declared, method="float64")


def worst_ratios(reference: Reference, found: dict[str, Tensor]) -> dict[str, float]:
    worst = dict[str, float]()
    for name, x in found.items():
        allowed, exact = reference.budgets[name], reference.exact(name)
        error = exact.error(x).masked_fill(torch.isinf(x), 0.0)
        worst[name] = max(allowed.ratios(allowed.measure(error, exact)).values())
    return worst


def emulated(contract: str, design: OnlineDesign, dtype: str = "bf16") -> ReferenceKernel:
    declared = attention_contract(contract, FORMATS[dtype])
    library = reference_kernels(declared)["library order"]
    return kernel(design, library, declared.accumulate.dtype)
