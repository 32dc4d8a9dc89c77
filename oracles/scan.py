"""Walking sequences in blocks of tokens: dense batches and packs alike, longest sequences first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.inputs import Inputs

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Tokens:
    """One block of tokens of every live sequence; rows past a sequence's end are inert (all zero, gate 0).

    Args:
        q, k: [n, HV, C, K], each key head repeated for its value heads.
        v: [n, HV, C, V]; g: [n, HV, C, K]; beta: [n, HV, C].
        valid: [n, C], False on the rows past a sequence's end.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    valid: Tensor


Body = Callable[[Tensors, Tokens], tuple[Tensors, Tensors]]


def scan(inputs: Inputs, size: int, carry: Tensors, body: Body, *, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Carries state through every sequence, `size` tokens at a time.

    An inert row leaves any state bit-identical (S * exp(0) + 0 * 0), so short tails need no second code path.

    Args:
        size: tokens per block.
        carry: tensors [N, ...], the state before the first token.
        body: (carry [n, ...], tokens) -> (carry [n, ...], outputs [n, HV, C, ...]); n counts the sequences still running.
        dtype: dtype the tokens are cast to.
    Returns:
        The carry after the last token [N, ...], and the outputs [B, T, HV, ...], zero on padding.
    """
    if not any(inputs.lengths):
        raise ValueError("scan: every sequence is empty, so there is no block to run; return the initial state instead")
    order = sorted(range(inputs.N), key=lambda n: -inputs.lengths[n])
    carry = tuple(tensor[order] for tensor in carry)
    finished: list[Tensors] = []
    rows: list[Tensor] = []
    produced: list[Tensors] = []
    for block_rows, valid in _blocks(inputs, order, size):
        live = len(block_rows)
        finished.append(tuple(tensor[live:] for tensor in carry))
        carry, outputs = body(tuple(tensor[:live] for tensor in carry), _gather(inputs, block_rows, valid, dtype))
        rows.append(block_rows[valid])
        kept = valid.to(inputs.q.device)
        produced.append(tuple(output.transpose(1, 2)[kept] for output in outputs))
    finished.append(carry)
    back = torch.as_tensor(order).argsort()
    final = tuple(torch.cat(pieces[::-1])[back] for pieces in zip(*finished, strict=True))
    return final, tuple(_scatter(inputs, rows, list(pieces)) for pieces in zip(*produced, strict=True))


def _blocks(inputs: Inputs, order: list[int], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the token axis and which of them are real, block by block; on the CPU, where asking costs an accelerator nothing."""
    starts = torch.as_tensor([inputs.starts[n] for n in order])
    lengths = torch.as_tensor([inputs.lengths[n] for n in order])
    for first in range(0, max(inputs.lengths), size):
        live = int((lengths > first).sum())
        offsets = torch.arange(first, first + size)
        valid = offsets < lengths[:live, None]
        last = lengths[:live, None] - 1
        yield starts[:live, None] + torch.minimum(offsets, last), valid


def _gather(inputs: Inputs, rows: Tensor, valid: Tensor, dtype: torch.dtype) -> Tokens:
    group = inputs.HV // inputs.H
    device = inputs.q.device
    inert = None if bool(valid.all()) else (~valid).to(device)
    rows = rows.to(device)

    def take(tensor: Tensor, repeat: int = 1) -> Tensor:
        picked = tensor.flatten(0, 1)[rows].to(dtype)
        if inert is not None:
            picked = picked.masked_fill(inert.view(*inert.shape, *[1] * (picked.ndim - 2)), 0.0)
        picked = picked.transpose(1, 2)
        return picked.repeat_interleave(repeat, dim=1) if repeat > 1 else picked

    return Tokens(take(inputs.q, group), take(inputs.k, group), take(inputs.v), take(inputs.g), take(inputs.beta), valid)


def _scatter(inputs: Inputs, rows: list[Tensor], pieces: list[Tensor]) -> Tensor:
    values = torch.cat(pieces)
    flat = values.new_zeros(inputs.B * inputs.T, *values.shape[1:])
    return flat.index_copy(0, torch.cat(rows).to(values.device), values).unflatten(0, (inputs.B, inputs.T))
