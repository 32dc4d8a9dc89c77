"""Faults of operands that are far apart: products with the scale that are subnormal."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Final

from kdaverify.faults.attention.kernel import AttentionPatch, KernelRequest
from kdaverify.faults.fault import Fault


def _scaled_q(r: KernelRequest) -> KernelRequest:
    """A scale that is a power of two is multiplied into q in its format."""
    if math.frexp(r.scale)[0] != 0.5:
        return r
    return replace(r, q=(r.q * r.scale).to(r.q.dtype), scale=1.0)


_fault = partial(
    Fault, kind="C", outputs=("o", "lse"), operator="attention", stage="scores",
    reference="class: far apart",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="FAR-scale", title="a scale that is a power of two is multiplied into q in fp16",
           trigger="small q and large k in fp16, a scale of 2^-n", dtypes=("fp16",),
           patch=lambda _: AttentionPatch(request=_scaled_q)),
)  # fmt: skip
