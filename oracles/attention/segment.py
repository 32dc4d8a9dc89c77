"""One request as kernels see it: dense q, K and V, and which keys each query sees."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """Query head h reads KV head h // (H / h_kv).

    Args:
        q: [H, s_q, d_k]; k: [h_kv, s_k, d_k]; v: [h_kv, s_k, d_v].
        scale: of the scores.
        visible: [s_q, s_k] bool.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    visible: Tensor
