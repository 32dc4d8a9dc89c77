"""Faults of the backward, and of sparse kernels that a dense one can have as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest
from kdaverify.faults.fault import Fault
from oracles.attention.backward import BACKWARD, AttentionBackward, Given, d_scores, recomputed
from oracles.attention.pipeline import PackedRows

TILE: Final = 16
RARE: Final = 1e-2
"""Of tiles, instead of one in a thousand: a smoke profile makes a few hundred."""


def staged(**stages: Any) -> AttentionPatch:
    """Stages of the backward replaced."""
    return AttentionPatch(backward=replace(BACKWARD, **stages))


def _quotient(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """exp(S) / exp(lse), which overflows above 88."""
    S = run.arithmetic.dot(rows.q, rows.k.mT) * rows.scale
    P = torch.exp(S) / torch.exp(given.lse)[..., None]
    return torch.where(rows.visible & (given.lse != -torch.inf)[..., None], P, torch.zeros_like(P))


def _of_the_first_request() -> AttentionPatch:
    """lse of the first request is used for all of its shape."""
    first = list[Tensor]()
    turn = [0]

    def request(r: KernelRequest) -> KernelRequest:
        turn[0] = r.index
        return r

    def weights(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
        if turn[0] == 0:
            first[:] = [given.lse]
        fits = bool(first) and first[0].shape == given.lse.shape
        return recomputed(run, rows, replace(given, lse=first[0]) if fits else given)

    return replace(staged(weights=weights), backward_request=request)


def _local_delta(run: AttentionBackward, P: Tensor, dP: Tensor, _: Tensor, dlse: Tensor) -> Tensor:
    """delta from the output of the block in hand instead of the merged one."""
    total = P.sum(-1)
    own = (P * dP).sum(-1) / torch.where(total == 0, torch.ones_like(total), total)
    return d_scores(run, P, dP, own, dlse)


def _rows_past_the_end(
    request: KernelRequest, do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Padded rows of a tile have P = 1 and the last row's dO."""
    dq, dk, dv, *of_sink = found
    missing = -request.s_q % TILE
    if not missing or not request.s_q or not request.s_k:
        return found
    group = len(request.q) // len(request.k)
    last = do[:, -1].unflatten(0, (-1, group)).sum(1).to(dv.dtype)
    return dq, dk, dv + missing * last[:, None], *of_sink


def _first_block_for_all() -> AttentionPatch:
    first = list[tuple[Tensor, Tensor]]()

    def dq(run: AttentionBackward, dS: Tensor, rows: PackedRows) -> Tensor:
        if dS.shape[-1] == 0:
            return torch.zeros_like(rows.q)
        if not first or first[0][1] is not rows.q:
            first[:] = [(rows.k, rows.q)]
        k = first[0][0]
        k = k if k.shape[1] == dS.shape[-1] else k[:, : dS.shape[-1]]
        return run.arithmetic.dot(dS, k) * rows.scale

    return staged(dq=dq)


def _stale_lse() -> AttentionPatch:
    """A tile now and then uses the lse of the rows before it."""
    rng = torch.Generator().manual_seed(2033)

    def weights(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
        if float(torch.rand((), generator=rng)) < RARE:
            given = replace(given, lse=given.lse.roll(1, -1) - 1.0)
        return recomputed(run, rows, given)

    return staged(weights=weights)


def _not_a_number_of_empty_rows(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """exp(-inf - -inf) of a row without keys."""
    P = recomputed(run, rows, given)
    return torch.where((given.lse == -torch.inf)[..., None], torch.nan, P)


def _without_dlse(
    run: AttentionBackward, P: Tensor, dP: Tensor, delta: Tensor, dlse: Tensor
) -> Tensor:
    return d_scores(run, P, dP, delta, torch.zeros_like(dlse))


def _accumulator_too_small(
    request: KernelRequest, _: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """The last rows of dq lie where dk begins."""
    dq, dk, dv, *of_sink = found
    over = request.s_q % 8
    if not over or not request.s_k:
        return found
    dq, n = dq.clone(), min(over, request.s_k)
    dq[: len(dk), request.s_q - n :] = dk[:, :n]
    return dq, dk, dv, *of_sink


def _uninitialised_tail(
    request: KernelRequest, _: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """0 times what shared memory held in the columns past d_k."""
    dq, *others = found
    return (torch.full_like(dq, torch.nan), *others) if request.q.shape[-1] % 32 else found


def _unmasked(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """Masked keys are not masked again: their P is exp(S - lse) of whatever was gathered."""
    return recomputed(run, replace(rows, visible=torch.ones_like(rows.visible)), given)


def _unguarded_fold(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """logaddexp(-inf, -inf) is NaN in the rows that see no key."""
    lse = torch.where(given.lse == -torch.inf, given.lse - given.lse, given.lse)
    return torch.where(lse.isnan()[..., None], torch.nan, recomputed(run, rows, given))


_fault = partial(Fault, dtypes=EVERY, operator="attention", stage="dq", outputs=("dq", "dk", "dv"))
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-B1", kind="A", title="P as a quotient of two exponentials",
           reference="Dao-AILab/flash-attention#1052", trigger="logits above 88",
           patch=lambda _: staged(weights=_quotient)),
    _fault(id="attention-B2", kind="B", title="lse of the first request is used for all",
           reference="NVIDIA/TransformerEngine#3216", trigger="several requests of one length",
           patch=lambda _: _of_the_first_request()),
    _fault(id="attention-B3", kind="A",
           title="delta from the output of the block instead of the whole",
           reference="huggingface/picotron#37", trigger="more than one block of 16 keys",
           outputs=("dq", "dk"), stage="delta", patch=lambda _: staged(d_scores=_local_delta)),
    _fault(id="attention-B4", kind="B", title="dv sums rows past the last query",
           reference="flash-sparse-attention#121, hao-ai-lab/FastVideo#925",
           trigger="s_q no multiple of 16", outputs=("dv",),
           stage="dkv", patch=lambda _: AttentionPatch(gradients=_rows_past_the_end)),
    _fault(id="attention-B5", kind="B",
           title="every step of the backward reads the keys of the first block",
           reference="huggingface/diffusers#14265", trigger="more than one block of 16 keys",
           outputs=("dq",), patch=lambda _: _first_block_for_all()),
    _fault(id="attention-B6", kind="D",
           title="lse in a shared buffer is read after its release (emulated: one tile in a"
                 " hundred)", reference="Dao-AILab/flash-attention#2033, #359",
           trigger="many tiles, or repeats", patch=lambda _: _stale_lse()),
    _fault(id="attention-B7", kind="A", title="a masked row's NaN reaches all gradients",
           reference="pytorch/pytorch#196170", trigger="a row that sees no key",
           patch=lambda _: staged(weights=_not_a_number_of_empty_rows)),
    _fault(id="attention-B8", kind="A", title="the cotangent of lse is dropped",
           reference="deepseek-ai/FlashMLA, Dao-AILab/flash-attention#1137",
           trigger="a loss that depends on lse", outputs=("dq", "dk"),
           patch=lambda _: staged(d_scores=_without_dlse)),
    _fault(id="attention-B9", kind="B", title="the last rows of dq alias the next tensor",
           reference="deepseek-ai/FlashMLA@261330b", trigger="s_q no multiple of 8",
           outputs=("dq",), patch=lambda _: AttentionPatch(gradients=_accumulator_too_small)),
    _fault(id="attention-B10", kind="B", title="NaN from the tail of the columns",
           reference="pytorch/pytorch#119320", trigger="fp32, d_k no multiple of 32",
           outputs=("dq",), patch=lambda _: AttentionPatch(gradients=_uninitialised_tail),
           dtypes=("fp32",)),
    _fault(id="attention-K2", kind="B", title="masked keys are not masked in the backward",
           reference="NVIDIA/cudnn-frontend#676 (a)", trigger="causal, gradients",
           patch=lambda _: staged(weights=_unmasked)),
    _fault(id="attention-K3", kind="A",
           title="rows without keys break the folded lse of the backward",
           reference="NVIDIA/cudnn-frontend#676 (b), #785",
           trigger="a row that sees no key, gradients",
           patch=lambda _: staged(weights=_unguarded_fold)),
)  # fmt: skip
