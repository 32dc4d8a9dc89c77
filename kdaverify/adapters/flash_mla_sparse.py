"""FlashMLA: attention over lists of slots on Hopper, decode over a cache in FP8 and prefill over
rows in bf16, from the library inside a vLLM wheel.

Source: vllm/third_party/flashmla/flash_mla_interface.py of vLLM 0.33.0: flash_mla_with_kvcache with
indices, flash_mla_sparse_fwd. Heads with their sinks, and lists, are padded by the caller there
and here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.flash_mla import D_K, D_V, PAGE, RAN, called, environment, missing
from kdaverify.adapters.operator_kernel import shipped

MANY: Final = (64, 128)
FEW: Final = (8, 16, 32)
"""Query heads that kernels are compiled for."""
DECODE_TILE, PREFILL_TILE = 64, 128
"""Entries of a list come in multiples of these."""


def _padded(q: Tensor, indices: Tensor, heads: tuple[int, ...], tile: int) -> tuple[Tensor, Tensor]:
    """More heads of zeros, and more entries that name nothing."""
    H, topk = q.shape[2], indices.shape[2]
    more = min(count for count in heads if count >= H) - H
    return (
        pad(q, (0, 0, 0, more)) if more else q,
        pad(indices, (0, -topk % tile), value=-1) if topk % tile else indices,
    )


def _padded_sink(sink: Tensor | None, rows: Tensor) -> Tensor | None:
    """One for each of the heads, fp32."""
    return None if sink is None else pad(sink.float(), (0, rows.shape[2] - len(sink)))


def _decode(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Without topk_length, which Hopper's kernel refuses. A schedule belongs to a call."""
    rows, lists = _padded(q, indices, MANY, DECODE_TILE)
    lengths = schedule = splits = more = more_lists = more_lengths = out = None
    a = _padded_sink(sink, rows)
    given = (rows, cache, lists, lengths, a, schedule, splits, more, more_lists, more_lengths)
    o, lse, *_ = called("sparse_decode_fwd", *given, d_v, softmax_scale, out, False)  # noqa: FBT003
    return _of_heads(q, o, lse)


def _prefill(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None,
    heads: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Queries of all requests as one row of tokens, slots as rows of keys."""
    (B, s_q), (rows, lists) = q.shape[:2], _padded(q, indices, heads, PREFILL_TILE)
    lengths = None if topk_length is None else topk_length.repeat_interleave(s_q)
    kv, a, out = cache.flatten(0, 1), _padded_sink(sink, rows), None
    given = (rows.flatten(0, 1), kv, lists.flatten(0, 1)[:, None], softmax_scale, d_v)
    o, _, lse = called("sparse_prefill_fwd", *given, a, lengths, out)
    return _of_heads(q, o.unflatten(0, (B, s_q)), lse.unflatten(0, (B, s_q)).transpose(1, 2))


def _of_heads(q: Tensor, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Without the heads that were added."""
    H = q.shape[2]
    return o[:, :, :H].contiguous(), lse[:, :H].contiguous()


_adapter = partial(
    shipped,
    "sparse_attention",
    dtypes=("bf16",),
    device="cuda",
    isolate=True,
    widths=(D_V,),
    d_k=D_K,
    key_heads="one",
    empty_lse="+inf",
    missing=missing,
    proof=lambda: RAN[0],
    environment=environment,
)


def _at_most(most: int) -> Callable[[Any], str | None]:
    def supports(problem: Any) -> str | None:
        return None if most >= problem.H else f"at most {most} heads: there is no kernel of more"

    return supports


DECODE: Final = _adapter(
    _decode,
    "flash_mla-sparse-decode",
    # Hopper's kernel rounds the scale to bf16 before the product (mla.md 2.2)
    contract=contracts("online64-{0}[K_scale:bf16]", dtypes=("bf16",)),
    cache="fp8",
    page=PAGE,
    supports=_at_most(max(MANY)),
)
PREFILL: Final = _adapter(
    partial(_prefill, heads=MANY),
    "flash_mla-sparse-prefill",
    contract=contracts("online64-{0}", dtypes=("bf16",)),
    invalid="outside",
    supports=_at_most(max(MANY)),
)
FEW_HEADS: Final = _adapter(
    partial(_prefill, heads=FEW),
    "flash_mla-sparse-prefill-few-heads",
    contract=contracts("online64-{0}", dtypes=("bf16",)),
    invalid="outside",
    supports=_at_most(max(FEW)),
)
