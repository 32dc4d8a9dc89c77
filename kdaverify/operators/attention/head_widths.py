"""Panel problems of heads as wide as models have them, where that is no multiple of 64 columns.

Kernels pad heads to 16, 32 or 64 columns, and have tiles, atoms of stores and accumulators of their
own for each width. FlashAttention's dv was wrong where d_k is 128 and d_v is 96, its dq where d_k
is 72, 80, 104 or 112: no other problem has such widths, and a port with the former was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_ROWS: Final[dict[str, Any]] = {"s_q": 9, "s_k": 70, "H": 2, "h_kv": 1, "causal": True}
_WIDTHS: Final = (
    (72, 72), (80, 80), (96, 96), (104, 104), (112, 112), (128, 96), (144, 144), (160, 160),
    (192, 80),
)  # fmt: skip
"""d_k and d_v. Of 16 columns 72 and 104 are no multiple, of 32 also 80, 112 and 144; d_v is a
multiple of d_k nowhere else than where they are equal."""
DENSE: Final[Mapping[str, dict[str, Any]]] = {
    f"columns-{d_k}-{d_v}": {"d_k": d_k, "d_v": d_v, **_ROWS} for d_k, d_v in _WIDTHS
}
