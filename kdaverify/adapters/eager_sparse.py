"""Attention over lists of cache slots in a few lines of torch: a gather, then the softmax of
`eager_attention`; over rows in the format of q, and over rows quantised to FP8.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.eager_attention import softmax_attention
from kdaverify.adapters.operator_kernel import shipped

TILE: Final = 128


def _attention(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    slots = cache.flatten(0, 1).float()  # gradients of a slot are summed in fp32
    seen = (indices >= 0) & (indices < len(slots))
    if topk_length is not None:
        seen &= torch.arange(indices.shape[2]) < topk_length[:, None, None]
    found = list[tuple[Tensor, Tensor]]()
    for row, of_row, which in zip(*(x.flatten(0, 1) for x in (q, indices, seen)), strict=True):
        k = slots[of_row[which].long()]
        given: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": False, "sink": sink}
        found.append(softmax_attention(row[None], k, k[..., :d_v], **given))
    o, lse = zip(*found, strict=True)
    whole = torch.cat(o).unflatten(0, q.shape[:2])
    return whole, torch.stack(lse).squeeze(2).unflatten(0, q.shape[:2]).transpose(1, 2)


def _quantised(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows of 656 bytes at the widths of the model, dequantised in fp32."""
    tiles = d_v // TILE
    codes, scales, others = (
        part.contiguous()
        for part in cache.split([d_v, 4 * tiles, cache.shape[-1] - d_v - 4 * tiles], -1)
    )
    latent = codes.view(torch.float8_e4m3fn).float().unflatten(-1, (tiles, TILE))
    latent = (latent * scales.view(torch.float32)[..., None]).flatten(-2)
    rows = torch.cat((latent, others.view(torch.bfloat16).float()), -1)
    given: dict[str, Any] = {"topk_length": topk_length, "d_v": d_v, "sink": sink}
    return _attention(q, rows, indices, softmax_scale=softmax_scale, **given)


DTYPES: Final = ("fp32", "bf16", "fp16")
_adapter = partial(
    shipped, "sparse_attention", dtypes=DTYPES, contract="math-fp32", invalid="outside"
)
ROWS: Final = _adapter(_attention, "eager-sparse-attention", gradients=True, lse_gradient="given")
FP8: Final = _adapter(_quantised, "eager-sparse-fp8", cache="fp8")
