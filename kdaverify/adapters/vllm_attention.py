"""vLLM: its Triton decode over a paged cache and its merges of two states."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import contracts, refusing
from kdaverify.adapters.vllm_package import (
    NATIVE,
    adapter_of,
    module,
    remember,
    watched,
)

OPS: Final = "v1.attention.ops"
DECODE: Final = f"{OPS}.triton_decode_attention"
MERGE: Final = f"{OPS}.triton_merge_attn_states"
PLAIN: Final = f"{OPS}.merge_attn_states"
SPLITS: Final = 4
_TILE: Final = 16
"""Least width of a product of matrix units, which widths are filled up to."""


def _decode(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    """One query token a request; V is a view of the cache."""
    B, _, H, _ = q.shape
    o = q.new_empty(B, H, d_v)
    lse = q.new_empty(B, H, dtype=torch.float32)
    partials = q.new_empty(B, H, SPLITS, d_v + 1, dtype=torch.float32)

    def call(file: ModuleType) -> None:
        file.decode_attention_fwd(
            q[:, 0],
            cache,
            cache[..., :d_v],
            o,
            lse,
            block_table,
            cache_seqlens,
            partials,
            SPLITS,
            softmax_scale,
            cache.shape[1],
            is_mla=True,
        )

    watched(DECODE, q.dtype, call)
    return o[:, None], lse[..., None]


def _merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    o, lse = torch.empty_like(o_a), torch.empty_like(lse_a)

    def call(file: ModuleType) -> None:
        file.merge_attn_states(o, o_a, lse_a, o_b, lse_b, lse)

    watched(MERGE, o.dtype, call)
    return o, lse


def _plain_merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The function of torch that takes over on a CPU."""
    o, lse = torch.empty_like(o_a), torch.empty_like(lse_a)
    merge = module(PLAIN)._merge_attn_states_torch  # noqa: SLF001
    merge(o, o_a, lse_a, o_b, lse_b, lse)
    remember("merge_attn_states, torch")
    return o, lse


def _one_query(problem: Any) -> str | None:
    return None if problem.s_q == 1 else "one query token: the kernel has no more a request"


def _whole_tiles(problem: Any) -> str | None:
    """On a device, query heads that share a cache head meet in products of 16 columns and more."""
    shared = problem.h_kv < problem.H
    narrow = problem.d_v <= _TILE // 2 or 0 < problem.d_k - problem.d_v <= _TILE // 2
    return f"d_v and d_k - d_v above {_TILE // 2}" if NATIVE and shared and narrow else None


DECODE_KERNEL: Final = adapter_of(
    "mla_decode",
    _decode,
    "vllm-triton-decode",
    contract=contracts(f"online32-{{0}}[splits:{SPLITS}]"),
    supports=refusing(_one_query, _whole_tiles),
)
MERGE_KERNEL: Final = adapter_of("merge_state", _merge, "vllm-triton-merge")
PLAIN_MERGE: Final = adapter_of("merge_state", _plain_merge, "vllm-torch-merge")
