"""The hidden switch of `chunk_kda_fwd`: large calls go through three kernels, unreported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kdaverify.adapters.ascend.revisions import Revision
from oracles.inputs import Inputs

FUSED: Final = "aclnnChunkKdaFwd"
THREE_KERNELS: Final = "aclnnChunkKdaFwdV2"
LEAST_WORK: Final = 4096
WIDTH, CHUNK = 128, 64
DEDUCED: Final = "deduced from the operator's rule, which it does not report"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the switch looks at.

    Args:
        dtype: of q, k and v.
        HV, K, V: value heads and widths.
        lengths: of the sequences; of one entry in a dense call, however many there are.
        chunk_size: tokens per chunk.
    """

    dtype: torch.dtype
    HV: int
    K: int
    V: int
    lengths: Sequence[int]
    chunk_size: int


def work_of(inputs: Inputs, chunk_size: int) -> Work:
    """The work of a call."""
    lengths = [inputs.T] if inputs.cu_seqlens is None else inputs.lengths
    return Work(
        dtype=inputs.q.dtype,
        HV=inputs.HV,
        K=inputs.K,
        V=inputs.V,
        lengths=lengths,
        chunk_size=chunk_size,
    )


def route(revision: Revision, work: Work) -> str:
    """The operator that a call without special switches reaches, by the rule.

    Math: HV * chunks >= 4096 with bf16, K = V = 128, chunks of 64 and no empty sequence.
    Source: flash-linear-attention-npu, torch_custom/fla_npu/csrc/src/stable_chunk_kda_fwd.cpp.
    """
    chunks = sum(-(-length // work.chunk_size) for length in work.lengths)
    fits = (
        work.dtype == torch.bfloat16
        and work.K == work.V == WIDTH
        and work.chunk_size == CHUNK
        and min(work.lengths) > 0
    )
    large = work.HV * chunks >= LEAST_WORK
    return THREE_KERNELS if revision.two_routes and fits and large else FUSED
