"""The stages of attention, whose kernels return outputs alone."""

from __future__ import annotations

from typing import Final

STAGES: Final = (
    "gather", "dequant", "scores", "partial", "combine", "sink", "lse", "delta", "dq", "dkv",
)  # fmt: skip
"""By the first tensor that is wrong: rows of q, K and V as they are read; their numbers, where they
are quantised; S under the mask; weights, P V and how they are stored; the merge of parts; the
factor of a sink, and its gradient; LSE as it is returned; <do, o>; P and dS of the backward, and
dq; dk and dv."""
