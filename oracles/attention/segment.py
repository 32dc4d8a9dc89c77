"""One request of any softmax attention: what every form of call is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """Queries of one request, and the keys that each of them sees.

    Math: S_ij = c <q_i, k_j>, LSE_i = ln sum_j exp(S_ij), o_i = sum_j exp(S_ij - LSE_i) v_j over
    the visible j; query head h has the key head h // (H / h_kv). A window, a causal border and a
    list of indices are visible sets.

    Args:
        q: [H, s_q, d_k]; k: [h_kv, s_k, d_k]; v: [h_kv, s_k, d_v], of any float format.
        scale: c.
        visible: [s_q, s_k] bool; for reference kernels alone also [h_kv, s_q, s_k].
        sink: [H] logits that join the sum of exponentials without a value, or None.
        lse_includes_sink: whether LSE is that of keys and sink, or of the keys alone.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    visible: Tensor
    sink: Tensor | None = None
    lse_includes_sink: bool = False

    @property
    def group(self) -> int:
        """Query heads of one key head."""
        return self.q.shape[0] // self.k.shape[0]

    @property
    def empty(self) -> Tensor:
        """[s_q] Rows that see no key."""
        return ~self.visible.any(1)

    def of_heads(self, x: Tensor) -> Tensor:
        """A tensor of key heads with an entry for every query head."""
        return x.repeat_interleave(self.group, 0)

    def of_key_heads(self, x: Tensor) -> Tensor:
        """The transpose: the sums over the query heads of each key head."""
        return x.unflatten(0, (self.k.shape[0], self.group)).sum(1)

    def over(self, keys: Tensor) -> Segment:
        """The same queries over some keys, by index or mask [s_k]; no part has the sink."""
        return Segment(self.q, self.k[:, keys], self.v[:, keys], self.scale, self.visible[:, keys])


def causal(s_q: int, s_k: int, device: torch.device | None = None) -> Tensor:
    """[s_q, s_k] Keys that a row sees where the last row sees all: j <= s_k - s_q + i."""
    rows, keys = torch.arange(s_q, device=device), torch.arange(s_k, device=device)
    return keys <= rows[:, None] + (s_k - s_q)


def seen(s_q: int, s_k: int, *, masked: bool, device: torch.device | None = None) -> Tensor:
    """[s_q, s_k] All keys, or those under the causal border."""
    if masked:
        return causal(s_q, s_k, device)
    return torch.ones(s_q, s_k, dtype=torch.bool, device=device)
