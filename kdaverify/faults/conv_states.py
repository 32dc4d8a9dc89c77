"""Faults of short convolutions in sequences of a batch or a pack, and in their states."""

# pyright: basic
# Faults are lambdas in the place of typed parts.
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.nn import functional

from kdaverify.faults.fault import Fault
from kdaverify.faults.short_conv import (
    EVERY,
    RIGHT,
    Parts,
    Result,
    old_columns,
    sequences,
    shifted_in,
)


def tiles(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    """Offsets of the last tile are ignored: its tokens go to the sequence at its start."""
    found = sequences(cu, B, T)
    if cu is None:
        return found
    last = T // 16 * 16
    starts = [first if first <= last else end for _, first, end in found]
    ends = [*starts[1:], found[-1][2]]
    return [(0, first, max(first, end)) for first, end in zip(starts, ends, strict=True)]


def one_stream(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    """A pack is one sequence; the states of the others are empty."""
    return (
        sequences(cu, B, T) if cu is None else [(0, 0, int(cu[-1])), *[(0, 0, 0)] * (len(cu) - 2)]
    )


def stale(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return x.new_full((x.shape[1], W - 1), 0.5) if state is None else state[:, 1:]


def zero_filled(_before: Tensor, x: Tensor, W: int, _y: Tensor) -> Tensor:
    return functional.pad(x.mT, (W, 0))[:, -W:]


def of_token_0(before: Tensor, x: Tensor, W: int, y: Tensor) -> Tensor:
    return shifted_in(before, x[:1], W, y)


def first_columns(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return old_columns(None, W, x) if state is None else state[:, : W - 1]


def last_eight(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    """Columns that one group of eight taps reaches."""
    found = old_columns(state, W, x)
    near = found.shape[1] - 8
    return functional.pad(found[:, max(near, 0) :], (max(near, 0), 0))


def rolled(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return old_columns(state, W, x) if state is None else old_columns(state, W, x).roll(1, 1)


@dataclass(frozen=True)
class OtherSlots(Parts):
    """States are written back to the slots of the requests that were there before."""

    def __call__(self, *call: Any) -> Result:
        y, states = Parts.__call__(self, *call)
        return y, states.roll(1, 0)


@dataclass(frozen=True)
class WholeTiles(Parts):
    """Batch entries of whole tiles are one sequence: tiles see only a tile before them."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        y, states = Parts.__call__(self, x, weight, bias, *options)
        state, cu, act = options
        if cu is None and len(x) > 1 and x.shape[1] % 32 == 0:
            first = None if state is None else state[:1]
            y, _ = Parts.__call__(self, x.flatten(0, 1)[None], weight, bias, first, None, act)
        return y.view_as(x), states


_conv = partial(Fault, operator="short_conv", stage="short_conv", dtypes=EVERY)
FAULTS: Final = (
    _conv("CONV-C4", "sequence ids of the last tile are not read",
          "Dao-AILab/causal-conv1d#67, #101", "B", "a sequence that begins in the last tile",
          ("y",), lambda _: RIGHT.replaced(cut=tiles)),
    _conv("CONV-C6", "the state holds outputs instead of inputs", "state-spaces/mamba#1027", "A",
          "any state", ("final_state",),
          lambda _: RIGHT.replaced(final=lambda before, x, W, y: shifted_in(before, y, W, x))),
    _conv("CONV-C9", "a call shorter than W - 1 drops the older state",
          "vllm-project/vllm-ascend#8561 (review)", "B", "fewer than W - 1 tokens",
          ("final_state",), lambda _: RIGHT.replaced(final=zero_filled)),
    _conv("CONV-C10", "the first columns of the state are read instead of the last",
          "sgl-project/sglang#38622 (1)", "B", "an initial state", ("y",),
          lambda _: RIGHT.replaced(history=first_columns)),
    _conv("CONV-C11", "the position in a circular state is not read",
          "sgl-project/sglang#38622 (2), #38623", "B", "an initial state", ("y",),
          lambda _: RIGHT.replaced(history=rolled)),
    _conv("CONV-groups", "the last eight columns of the state are read", "class: taps by groups",
          "B", "an initial state, more than nine taps", ("y",),
          lambda _: RIGHT.replaced(history=last_eight)),
    _conv("CONV-C14", "the state is that after the first token",
          "vllm-project/vllm-xpu-kernels#544", "B", "more than one token", ("final_state",),
          lambda _: RIGHT.replaced(final=of_token_0)),
    _conv("CONV-C15", "a sequence without a state reads what its slot held",
          "vllm-project/vllm-ascend#10558 (review)", "A", "no initial state", ("y",),
          lambda _: RIGHT.replaced(history=stale)),
    _conv("CONV-C23", "all rows are one sequence", "pytorch/torchtitan#3892 (review)", "B",
          "several sequences", ("y", "final_state"), lambda _: RIGHT.replaced(cut=one_stream)),
    _conv("CONV-L13", "states are written to the slots of other requests",
          "vllm-project/vllm-gaudi#1431", "E", "several sequences", ("final_state",),
          lambda _: OtherSlots(**vars(RIGHT))),
    _conv("CONV-tiles", "batch entries of whole tiles are one sequence", "class: tiles and batches",
          "B", "several batch entries, tokens a multiple of 32", ("y",),
          lambda _: WholeTiles(**vars(RIGHT))),
)  # fmt: skip
