"""Faults of memory layout: views taken for dense tensors, alignment, the order of heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault
from kdaverify.faults.kernel import Derive, Outputs, PatchedPipeline
from kdaverify.faults.patches import called, derived
from kdaverify.faults.views import as_if_contiguous, each
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

_layout = partial(Fault, stage="layout")
_ALIGNMENT = 32
_RANKS = 2


def _do_as_if_dense(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    do = None if given.do is None else as_if_contiguous(given.do)
    return derive(x, Cotangents(do, given.d_final_state))


def _alignment_demanded(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if x.g.data_ptr() % _ALIGNMENT:
        raise RuntimeError(f"g: address must be a multiple of {_ALIGNMENT} bytes")
    return kernel(x)


def _heads_of_other_ranks(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    # [Q | K | V] are cut into equal parts as one tensor, where every rank packs its own [q | k |
    # v].
    parts = [tensor.flatten(2) for tensor in (x.q, x.k, x.v)]
    widths = [part.shape[-1] for part in parts]
    own = [width // _RANKS for width in widths]
    if any(width % _RANKS for width in widths):
        return kernel(x)
    ranks = [piece.split(own, dim=-1) for piece in torch.cat(parts, dim=-1).chunk(_RANKS, dim=-1)]
    q, k, v = (
        torch.cat([rank[i] for rank in ranks], dim=-1).reshape(tensor.shape)
        for i, tensor in enumerate((x.q, x.k, x.v))
    )
    return kernel(replace(x, q=q, k=k, v=v))


FAULTS: Final = (
    _layout("S15", "strides of the state are ignored", "flashserve/fla-npu@833fb6d7, #317, #362",
            "E", "an initial state that is not contiguous", ("o", "final_state"),
            called(lambda kernel, x: kernel(each(x, ("initial_state",), as_if_contiguous)))),
    _layout("S29", "strides of q, k and v are ignored",
            "flashinfer-ai/flashinfer#3693 (regression #3649)", "B", "q, k or v not contiguous",
            ("o",), called(lambda kernel, x: kernel(each(x, ("q", "k", "v"), as_if_contiguous)))),
    _layout("P7", "strides of the incoming gradient are ignored", "fla-org/fla#1139, #871, #627",
            "B", "do not contiguous", ("dq", "dk", "dv", "d_initial_state"),
            derived(_do_as_if_dense)),
    _layout("S30", "a stricter alignment is demanded than views have", "sgl-project/sglang#32800",
            "F", "gates at an address that is no multiple of 32 bytes", ("call",),
            called(_alignment_demanded)),
    _layout("P9", "heads are dealt to ranks from [Q | K | V] as one tensor",
            "sgl-project/sglang-jax@f6063119", "B", "an even number of channels in q, k and v",
            ("o",), called(_heads_of_other_ranks)),
)  # fmt: skip
