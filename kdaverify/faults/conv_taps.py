"""Faults of short convolutions in taps, sums, activations and the tokens of a block."""

# pyright: basic
# Faults are lambdas in the place of typed parts.
from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.faults.fault import Fault
from kdaverify.faults.short_conv import EVERY, RIGHT, silu, summed, windows

BLOCK: Final = 1024
"""Tokens a program: what kernels take where a channel is a thread."""


def wrapped(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    z = summed(stream, w, b)
    return z[torch.arange(len(z)) % 32]


def without_history(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Blocks of BLOCK tokens begin without the tokens before them, but for the first one."""
    W, token = w.shape[1], torch.arange(len(stream) - w.shape[1] + 1)
    inside = torch.where(token < BLOCK, W, token % BLOCK)
    taps = [x * (inside >= W - 1 - j)[:, None].to(x) for j, x in enumerate(windows(stream, W))]
    z = sum((w[:, j] * x for j, x in enumerate(taps)), torch.zeros(()))
    return z if b is None else z + b


def counted_in_16_bits(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    z = summed(stream, w, b)
    return z[torch.arange(len(z)) % 2**16]


def shifted(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Cut at the wrong end: the outputs of W - 1 tokens later."""
    W = w.shape[1]
    return summed(functional.pad(stream, (0, 0, 0, W - 1)), w, b)[W - 1 :]


def without_bias(stream: Tensor, w: Tensor, _: Tensor | None) -> Tensor:
    return summed(stream, w, None)


def without_zero_rows(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """A token whose row is 0 is padding: it has the bias alone."""
    z, W = summed(stream, w, b), w.shape[1]
    there = (stream[W - 1 :] != 0).any(-1, keepdim=True)
    return torch.where(there, z, torch.zeros_like(z) if b is None else b.expand_as(z))


def by_complement(z: Tensor, name: str | None) -> Tensor:
    return z * (1 - torch.sigmoid(-z).bfloat16().float()) if name else z


_conv = partial(Fault, operator="short_conv", stage="short_conv", dtypes=EVERY)
FAULTS: Final = (
    _conv("CONV-C3", "element offsets wrap inside the buffer",
          "Dao-AILab/causal-conv1d#114, vllm-project/vllm#41617", "F",
          "more than 32 tokens", ("y",), lambda _: RIGHT.replaced(take=wrapped)),
    _conv("CONV-C5", "the padded convolution is cut at the wrong end",
          "state-spaces/mamba#437, #580", "B", "any", ("y",),
          lambda _: RIGHT.replaced(take=shifted)),
    _conv("CONV-C17", "SiLU always", "sgl-project/sgl-kernel-npu#449", "A", "no activation", ("y",),
          lambda _: RIGHT.replaced(act=lambda z, _: silu(z))),
    _conv("CONV-C20", "SiLU by 1 - sigmoid(-z) in 16 bits", "skyzh/tiny-llm#161, #164", "C",
          "z below -5", ("y",), lambda _: RIGHT.replaced(act=by_complement)),
    _conv("CONV-C21", "the bias is passed in the slot of the residual", "fla-org/fla#1176", "E",
          "a bias", ("y",), lambda _: RIGHT.replaced(take=without_bias)),
    _conv("CONV-block", "every block of 1,024 tokens begins without history",
          "class: tiles of long sequences", "B", "more than 1,024 tokens", ("y",),
          lambda _: RIGHT.replaced(take=without_history)),
    _conv("CONV-rows", "rows are counted in 16 bits",
          "class: index width, grids of at most 65,535 programs", "F", "more than 65,536 tokens",
          ("y",), lambda _: RIGHT.replaced(take=counted_in_16_bits)),
    _conv("CONV-zeros", "rows of zeros are taken for padding", "class: numbers that mark memory",
          "B", "a row of x that is exactly 0", ("y",),
          lambda _: RIGHT.replaced(take=without_zero_rows)),
)  # fmt: skip
