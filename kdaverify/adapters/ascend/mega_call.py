"""The call of megagdn-pto's fused kernel: from ours to what its pointers want, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.ascend.layouts import packed
from kdaverify.adapters.ascend.mega_kernel import CHUNK
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import fold_scale
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

HEAD_MAJOR: Final = ("q", "k", "beta")
_HEAD_MAJOR: Final = Conventions(layout="bhtd", packing="cu_seqlens")


def prepared(inputs: Inputs) -> Inputs:
    """The call as the kernel is meant to get it: packed, scaled, heads repeated."""
    call = packed(fold_scale(inputs))
    repeats = call.HV // call.H
    return replace(
        call, q=call.q.repeat_interleave(repeats, dim=2), k=call.k.repeat_interleave(repeats, dim=2)
    )


def pointed(call: Inputs, conventions: Conventions) -> dict[str, Tensor]:
    """The tensors behind the pointers, without the batch axis; gates are rounded to fp16 last."""
    handed = {name: conventions.hand(name, getattr(call, name), call) for name in TOKENS}
    handed |= {name: _HEAD_MAJOR.hand(name, handed[name], call) for name in HEAD_MAJOR}
    assert call.cu_seqlens is not None  # it is packed
    return {
        **{name: tensor[0].half() for name, tensor in handed.items()},
        "cu_seqlens": call.cu_seqlens.to(torch.int32),
    }


@torch.no_grad()
def show_edits(
    inputs: Inputs, call: Inputs, given: Mapping[str, Tensor], left: Mapping[str, Tensor]
) -> None:
    """Marks the caller's elements of inputs that the kernel edited; their values mean nothing."""
    for name, before in given.items():
        if torch.equal(before, left[name]):
            continue
        if name == "cu_seqlens":
            raise RuntimeError(
                f"cu_seqlens: the kernel changed its offsets, from {before.tolist()} to"
                f" {left[name].tolist()}"
            )
        changed = (before != left[name])[None]
        if name in HEAD_MAJOR:
            changed = changed.transpose(1, 2)
        target = getattr(inputs, name)
        if name in ("q", "k"):
            changed = changed.unflatten(2, (inputs.H, call.HV // inputs.H)).any(dim=3)
        target.masked_fill_(changed.reshape(target.shape), torch.nan)


def last_snapshots(snapshots: Tensor, call: Inputs) -> Tensor:
    """The last snapshot of every sequence [N, HV, K, V]; zeros for one without tokens."""
    counts = torch.tensor([-(-length // CHUNK) for length in call.lengths])
    last = counts.cumsum(0) - 1
    picked = snapshots[last.clamp(min=0).to(snapshots.device)]
    return picked.masked_fill((counts == 0).to(picked.device)[:, None, None, None], 0.0)
