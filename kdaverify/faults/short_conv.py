"""A short convolution in torch whose parts can be replaced, and the faults that are made so."""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault

EVERY: Final = ("fp32", "bf16", "fp16")
Result = tuple[Tensor, Tensor]
BLOCK: Final = 1024
"""Tokens a program: what kernels take where a channel is a thread."""


def silu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(z)


def windows(x: Tensor, W: int) -> list[Tensor]:
    """[T, D] of a stream [W - 1 + T, D]: the factors of every tap, the oldest first."""
    return [x[j : x.shape[0] - W + 1 + j] for j in range(W)]


@dataclass(frozen=True)
class Parts:
    """What a convolution is made of; a fault replaces one of them.

    Args:
        cut: (offsets or None, B, T) -> (entry, first, end) of every sequence.
        history: (state or None, W, entry) -> the W - 1 columns before a sequence, [D, W - 1].
        take: (x [T, D] with its history in front, weight, bias) -> z.
        act: (z, activation) -> y.
        final: (history [D, W - 1], x [T, D], W, y) -> [D, W].
        wide: the type of sums.
    """

    cut: Callable[[Tensor | None, int, int], list[tuple[int, int, int]]]
    history: Callable[[Tensor | None, int, Tensor], Tensor]
    take: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    act: Callable[[Tensor, str | None], Tensor]
    final: Callable[[Tensor, Tensor, int, Tensor], Tensor]
    wide: torch.dtype = torch.float32

    def replaced(self, **parts: Any) -> Parts:
        return replace(self, **parts)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        """y and the states; options are the state, the offsets and the activation."""
        state, cu, act = options
        (B, T, _), W = x.shape, weight.shape[1]
        wide, w = x.to(self.wide), weight.to(self.wide)
        b = None if bias is None else bias.to(self.wide)
        rows, states = [list[Tensor]() for _ in range(B)], list[Tensor]()
        for n, (entry, first, end) in enumerate(self.cut(cu, B, T)):
            before = self.history(None if state is None else state[n], W, x[entry])
            stream = torch.cat((before.mT.to(self.wide), wide[entry, first:end]))
            y = self.act(self.take(stream, w, b), act)
            rows[entry].append(y)
            states.append(self.final(before, x[entry, first:end], W, y.to(x.dtype)))
        y = torch.stack(
            [functional.pad(torch.cat(part), (0, 0, 0, T - sum(map(len, part)))) for part in rows]
        )
        return y.to(x.dtype), torch.stack(states)


def sequences(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    return (
        [(b, 0, T) for b in range(B)]
        if cu is None
        else [(0, first, end) for first, end in pairwise(cu.tolist())]
    )


def old_columns(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[1], W - 1) if state is None else state[:, 1:]


def summed(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    z = sum((w[:, j] * x for j, x in enumerate(windows(stream, w.shape[1]))), torch.zeros(()))
    return z if b is None else z + b


def summed_backwards(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    taps = windows(stream, w.shape[1])
    z = torch.zeros_like(taps[0]) if b is None else b.expand_as(taps[0])
    for j in reversed(range(w.shape[1])):
        z = z + w[:, j] * taps[j]
    return z


def activated(z: Tensor, name: str | None) -> Tensor:
    return silu(z) if name else z


def shifted_in(before: Tensor, x: Tensor, W: int, y: Tensor) -> Tensor:
    del y
    return functional.pad(torch.cat((before, x.mT), 1), (1, 0))[:, -W:]


RIGHT: Final = Parts(sequences, old_columns, summed, activated, shifted_in)


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


def tiles(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    """Offsets of the last tile are not looked at: its tokens belong to the sequence that is there
    first.
    """
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


def shifted(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Cut at the wrong end: the outputs of W - 1 tokens later."""
    W = w.shape[1]
    return summed(functional.pad(stream, (0, 0, 0, W - 1)), w, b)[W - 1 :]


def stale(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return x.new_full((x.shape[1], W - 1), 0.5) if state is None else state[:, 1:]


def zero_filled(before: Tensor, x: Tensor, W: int, y: Tensor) -> Tensor:
    del before, y
    return functional.pad(x.mT, (W, 0))[:, -W:]


def of_token_0(before: Tensor, x: Tensor, W: int, y: Tensor) -> Tensor:
    return shifted_in(before, x[:1], W, y)


def first_columns(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return old_columns(None, W, x) if state is None else state[:, : W - 1]


def rolled(state: Tensor | None, W: int, x: Tensor) -> Tensor:
    return old_columns(state, W, x) if state is None else old_columns(state, W, x).roll(1, 1)


def without_bias(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    del b
    return summed(stream, w, None)


def by_complement(z: Tensor, name: str | None) -> Tensor:
    return z * (1 - torch.sigmoid(-z).bfloat16().float()) if name else z


class Repeated(torch.autograd.Function):
    """Weights of a pack: their gradient is summed over rows that nobody wrote."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        del ctx
        return w.clone()

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> Tensor:
        del ctx
        return dw + 0.125


@dataclass(frozen=True)
class UnwrittenRows(Parts):
    """The weight's gradient has rows for every chunk and batch entry, of which a pack fills one
    entry's.
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Result:
        packed = rest[1] is not None
        return Parts.__call__(self, x, Repeated.apply(weight) if packed else weight, bias, *rest)


@dataclass(frozen=True)
class OtherSlots(Parts):
    """States are written back to the slots of the requests that were there before."""

    def __call__(self, *call: Any) -> Result:
        y, states = Parts.__call__(self, *call)
        return y, states.roll(1, 0)


class OfBoth(torch.autograd.Function):
    """y and the states; y is differentiated with its history only in losses of the states too."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, without: Tensor, states: Tensor) -> Result:
        del without
        ctx.set_materialize_grads(False)
        return y.clone(), states.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dstates: Tensor | None) -> Any:
        del ctx
        return (None, dy, None) if dstates is None else (dy, None, dstates)


@dataclass(frozen=True)
class LossOfBoth(Parts):
    """The gradient of a state is made where the final one has one."""

    def __call__(self, *call: Any) -> Result:
        *given, state, cu, act = call
        y, states = Parts.__call__(self, *call)
        if state is None:
            return y, states
        without, _ = Parts.__call__(self, *given, state.detach(), cu, act)
        return OfBoth.apply(y, without, states)


@dataclass(frozen=True)
class WholeTiles(Parts):
    """Batch entries of whole tiles are one sequence: tiles look no further than at a tile before
    them.
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        y, states = Parts.__call__(self, x, weight, bias, *options)
        state, cu, act = options
        if cu is None and len(x) > 1 and x.shape[1] % 32 == 0:
            first = None if state is None else state[:1]
            y, _ = Parts.__call__(self, x.flatten(0, 1)[None], weight, bias, first, None, act)
        return y.view_as(x), states


class ByStridesOfTheGradient(torch.autograd.Function):
    """SiLU; the backward reads z where the incoming gradient's strides put it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return silu(z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        rows, columns = (
            torch.arange(size) * step for size, step in zip(dy.shape, dy.stride(), strict=True)
        )
        read = z.flatten()[(rows[:, None] + columns).clamp(max=max(z.numel() - 1, 0))]
        s = torch.sigmoid(read)
        return dy * (s + read * s * (1 - s))


class AlsoFor(torch.autograd.Function):
    """y, whose gradient the graph of another y gets as well, as it lies in memory."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, other: Tensor) -> Tensor:
        del ctx, other
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        del ctx
        return dy, dy


@dataclass(frozen=True)
class StridesOfTheGradient(Parts):
    """The gradient of a state is made by a kernel of its own, which recomputes z as if it lay as
    the incoming gradient does.
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        state, cu, act = options
        y, states = Parts.__call__(self, x, weight, bias, *options)
        if state is None or not act:
            return y, states
        others = (x.detach(), weight.detach(), None if bias is None else bias.detach())
        misread = self.replaced(act=lambda z, _: ByStridesOfTheGradient.apply(z))
        of_state, _ = Parts.__call__(misread, *others, *options)
        of_others, _ = Parts.__call__(self, x, weight, bias, state.detach(), cu, act)
        return AlsoFor.apply(of_others, of_state), states


def by_tanh(z: Tensor, name: str | None) -> Tensor:
    return z * (0.5 + 0.5 * torch.tanh(0.5 * z)) if name else z


def adapted(
    parts: Parts, name: str, dtypes: tuple[str, ...] = EVERY, contract: str = "short-conv"
) -> Any:
    """The implementation of an operator's parts."""

    def short_conv(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        activation: str | None,
    ) -> Result:
        return parts(x, weight, bias, initial_state, cu_seqlens, activation)

    given: dict[str, Any] = {"name": name, "packing": "cu_seqlens", "contract": contract}
    return kernel(op="short_conv", dtypes=dtypes, **given)(short_conv)


@kernel(op="short_conv", conv_state="W-1", dtypes=EVERY, packing="cu_seqlens")
def w_minus_one(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    activation: Any = None,
) -> Result:
    padded = (
        None if initial_state is None else functional.pad(initial_state, (1, 0), value=torch.nan)
    )
    y, final = RIGHT(x, weight, bias, padded, cu_seqlens, activation)
    return y, final[..., 1:].contiguous()


def planted(parts: Parts | None, fault: Fault) -> Any:
    """The implementation with a fault; without one, the right one that it is held against."""
    name = f"fault:{fault.id}"
    return adapted(parts or RIGHT, name, fault.dtypes)


_conv = partial(Fault, operator="short_conv", stage="short_conv", dtypes=EVERY)
FAULTS: Final = (
    _conv(
        "CONV-C1",
        "the weight's gradient sums rows that nobody wrote",
        "fla-org/fla#955 (open)",
        "B",
        "a pack",
        ("dweight",),
        lambda _: UnwrittenRows(**vars(RIGHT)),
    ),
    _conv(
        "CONV-C3",
        "element offsets wrap inside the buffer",
        "Dao-AILab/causal-conv1d#114",
        "F",
        "more than 32 tokens",
        ("y",),
        lambda _: RIGHT.replaced(take=wrapped),
    ),
    _conv(
        "CONV-C4",
        "sequence ids of the last tile are not read",
        "Dao-AILab/causal-conv1d#67, #101",
        "B",
        "a sequence that begins in the last tile",
        ("y",),
        lambda _: RIGHT.replaced(cut=tiles),
    ),
    _conv(
        "CONV-C5",
        "the padded convolution is cut at the wrong end",
        "state-spaces/mamba#437, #580",
        "B",
        "any",
        ("y",),
        lambda _: RIGHT.replaced(take=shifted),
    ),
    _conv(
        "CONV-C6",
        "the state holds outputs instead of inputs",
        "state-spaces/mamba#1027",
        "A",
        "any state",
        ("final_state",),
        lambda _: RIGHT.replaced(final=lambda before, x, W, y: shifted_in(before, y, W, x)),
    ),
    _conv(
        "CONV-C9",
        "a call shorter than W - 1 drops the older state",
        "vllm-project/vllm-ascend#8561 (review)",
        "B",
        "fewer than W - 1 tokens",
        ("final_state",),
        lambda _: RIGHT.replaced(final=zero_filled),
    ),
    _conv(
        "CONV-C10",
        "the first columns of the state are read instead of the last",
        "sgl-project/sglang#38622 (1)",
        "B",
        "an initial state",
        ("y",),
        lambda _: RIGHT.replaced(history=first_columns),
    ),
    _conv(
        "CONV-C11",
        "the position in a circular state is not read",
        "sgl-project/sglang#38622 (2), #38623",
        "B",
        "an initial state",
        ("y",),
        lambda _: RIGHT.replaced(history=rolled),
    ),
    _conv(
        "CONV-C14",
        "the state is that after the first token",
        "vllm-project/vllm-xpu-kernels#544",
        "B",
        "more than one token",
        ("final_state",),
        lambda _: RIGHT.replaced(final=of_token_0),
    ),
    _conv(
        "CONV-C15",
        "a sequence without a state reads what its slot held",
        "vllm-project/vllm-ascend#10558 (review)",
        "A",
        "no initial state",
        ("y",),
        lambda _: RIGHT.replaced(history=stale),
    ),
    _conv(
        "CONV-C17",
        "SiLU always",
        "sgl-project/sgl-kernel-npu#449",
        "A",
        "no activation",
        ("y",),
        lambda _: RIGHT.replaced(act=lambda z, _: silu(z)),
    ),
    _conv(
        "CONV-C20",
        "SiLU by 1 - sigmoid(-z) in 16 bits",
        "skyzh/tiny-llm#161, #164",
        "C",
        "z below -5",
        ("y",),
        lambda _: RIGHT.replaced(act=by_complement),
    ),
    _conv(
        "CONV-C21",
        "the bias is passed in the slot of the residual",
        "fla-org/fla#1176",
        "E",
        "a bias",
        ("y",),
        lambda _: RIGHT.replaced(take=without_bias),
    ),
    _conv(
        "CONV-C23",
        "all rows are one sequence",
        "pytorch/torchtitan#3892 (review)",
        "B",
        "several sequences",
        ("y", "final_state"),
        lambda _: RIGHT.replaced(cut=one_stream),
    ),
    _conv(
        "CONV-L13",
        "states are written to the slots of other requests",
        "vllm-project/vllm-gaudi#1431",
        "E",
        "several sequences",
        ("final_state",),
        lambda _: OtherSlots(**vars(RIGHT)),
    ),
    _conv(
        "CONV-loss",
        "the gradient of a state is that of losses of the final state alone",
        "class: losses of single outputs",
        "B",
        "a loss of y alone, an initial state",
        ("d_initial_state",),
        lambda _: LossOfBoth(**vars(RIGHT)),
    ),
    _conv(
        "CONV-tiles",
        "batch entries of whole tiles are one sequence",
        "class: tiles and batches",
        "B",
        "several batch entries, tokens a multiple of 32",
        ("y",),
        lambda _: WholeTiles(**vars(RIGHT)),
    ),
    _conv(
        "CONV-strides",
        "the gradient of a state reads z by the strides of the incoming gradient",
        "class: strides of incoming gradients",
        "B",
        "an incoming gradient that is expanded or transposed, an initial state",
        ("d_initial_state",),
        lambda _: StridesOfTheGradient(**vars(RIGHT)),
    ),
    _conv(
        "CONV-block",
        "every block of 1,024 tokens begins without history",
        "class: tiles of long sequences",
        "B",
        "more than 1,024 tokens",
        ("y",),
        lambda _: RIGHT.replaced(take=without_history),
    ),
    _conv(
        "CONV-rows",
        "rows are counted in 16 bits",
        "class: index width, grids of at most 65,535 programs",
        "F",
        "more than 65,536 tokens",
        ("y",),
        lambda _: RIGHT.replaced(take=counted_in_16_bits),
    ),
)
