"""FlashMLA's decode on Hopper, emulated, and what published walk-throughs make of it.

The walk-throughs are not the code: each is a kernel that a port may become, and is rejected.
Source: mla.md 2.1; FlashMLA, csrc/sm90/decode/dense/splitkv_mla.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.operator_kernel import FunctionAdapter, shipped
from kdaverify.faults.attention.kernel import AttentionKernel, AttentionPatch, patched
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline, power, weights
from oracles.attention.seesaw import seesaw

DESIGN: Final = OnlineDesign(block=64, seesaw=True)
SPLIT: Final = replace(DESIGN, splits=4, cut="blocks")
CLAMP: Final = 88.0


def _turned_round(run: AttentionPipeline, old: Tensor, new: Tensor) -> Tensor:
    """2^(m_new - m_old) instead of its inverse."""
    found = 1 / power(run, old, new)
    return torch.where((old == new) | ~torch.isfinite(found), torch.ones_like(found), found)


def _second_factor_alone(a0: Tensor, a1: Tensor) -> tuple[Tensor, Tensor]:
    """The right half is rescaled by a1 instead of a0 a1."""
    return a0, a1


def _normalised_by_the_block(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    P = weights(run, S, m)
    total = P.sum(-1, keepdim=True)
    return P / torch.where(total == 0, torch.ones_like(total), total)


def _from_negative_infinity(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    return torch.exp2((S - m[..., None]) * run.exponent_scale)


def _clamped(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    """Exponents are kept above -88: a masked key has a weight."""
    safe = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    exponent = (S - safe[..., None]) * run.exponent_scale
    return torch.exp2(exponent.clamp(-CLAMP, CLAMP))


def _made(*, factors: Callable[..., Any] | None = None, **stages: Any) -> AttentionPatch:
    split = seesaw if factors is None else partial(seesaw, factors=factors)
    return patched(design=DESIGN, split=split, **stages)


DTYPES: Final = ("bf16", "fp16")


def emulated(name: str, patch: AttentionPatch) -> FunctionAdapter:
    """The adapter of one of them."""
    contract = {dtype: f"seesaw-{dtype}" for dtype in DTYPES}
    function = AttentionKernel(patch).mla_decode
    return shipped("mla_decode", function, f"emulated:{name}", contract=contract, dtypes=DTYPES)


SEESAW: Final = emulated("flashmla_seesaw", _made())
SEESAW_SPLITS: Final = emulated("flashmla_seesaw_splits", patched(design=SPLIT, split=seesaw))
TURNED_ROUND: Final = emulated("flashmla_turned_round", _made(rescale=_turned_round))
ONE_FACTOR: Final = emulated("flashmla_one_factor", _made(factors=_second_factor_alone))
NORMALISED: Final = emulated("flashmla_normalised", _made(weights=_normalised_by_the_block))
UNGUARDED: Final = emulated("flashmla_unguarded", _made(weights=_from_negative_infinity))
CLAMPED: Final = emulated("flashmla_clamped", _made(weights=_clamped))
