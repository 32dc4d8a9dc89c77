"""Short convolutions in torch: conforming ones in several conventions,
and one with each planted fault.
"""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import kdaverify as kv

EVERY: Final = ("fp32", "bf16", "fp16")
Result = tuple[Tensor, Tensor]


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
    """

    cut: Callable[[Tensor | None, int, int], list[tuple[int, int, int]]]
    history: Callable[[Tensor | None, int, Tensor], Tensor]
    take: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    act: Callable[[Tensor, str | None], Tensor]
    final: Callable[[Tensor, Tensor, int, Tensor], Tensor]

    def replaced(self, **parts: Any) -> Parts:
        return Parts(**{**vars(self), **parts})

    def __call__(  # noqa: PLR0917 # a call
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor | None,
        cu: Tensor | None,
        act: str | None,
    ) -> Result:
        (B, T, _), W = x.shape, weight.shape[1]
        wide, w, b = x.float(), weight.float(), None if bias is None else bias.float()
        rows, states = [list[Tensor]() for _ in range(B)], list[Tensor]()
        for n, (entry, first, end) in enumerate(self.cut(cu, B, T)):
            before = self.history(None if state is None else state[n], W, x[entry])
            stream = torch.cat((before.mT.float(), wide[entry, first:end]))
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


def narrow_sums(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return summed(stream.bfloat16(), w.bfloat16(), None if b is None else b.bfloat16()).float()


def truncated(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The low digits of the weight are dropped:
    below every element's bound, and all of one sign.
    """
    cut = (
        (w.view(torch.int32) & -4).view(torch.float32)
        if not w.requires_grad
        else w * (1 - 2.0**-22)
    )
    return summed(stream, cut, b)


def wrapped(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    z = summed(stream, w, b)
    return z[torch.arange(len(z)) % 32]


def unmasked_tail(z: Tensor, name: str | None) -> Tensor:
    return torch.where(
        torch.arange(z.shape[1])
        < z.shape[1] // 16 * 16 + (16 if z.shape[1] % 16 == 0 else z.shape[1] % 16 - 1),
        activated(z, name),
        z,
    )


def tiles(cu: Tensor | None, B: int, T: int) -> list[tuple[int, int, int]]:
    """Offsets of the last tile are not looked at:
    its tokens belong to the sequence that is there first.
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


class Garbage(torch.autograd.Function):
    """Hands weights on; their gradient is summed over rows that nobody wrote."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        del ctx
        return w.clone()

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> Tensor:
        del ctx
        return dw + 0.125


class Stopped(torch.autograd.Function):
    """SiLU whose slope lacks the term z s (1 - s)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return silu(z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return dy * torch.sigmoid(z)


FAULTS: Final[Mapping[str, Parts]] = {
    "C1 weight gradient sums rows that nobody wrote": RIGHT.replaced(
        take=lambda s, w, b: summed(s, Garbage.apply(w), b)
    ),
    "C3 offsets wrap": RIGHT.replaced(take=wrapped),
    "C4 sequences of the last tile": RIGHT.replaced(cut=tiles),
    "C5 cut at the wrong end": RIGHT.replaced(take=shifted),
    "C6 state of outputs": RIGHT.replaced(
        final=lambda before, x, W, y: shifted_in(before, y, W, x)
    ),
    "C9 short calls lose the state": RIGHT.replaced(final=zero_filled),
    "C10 the first columns of the state": RIGHT.replaced(
        history=lambda s, W, x: old_columns(None, W, x) if s is None else s[:, : W - 1]
    ),
    "C11 a position that is not read": RIGHT.replaced(
        history=lambda s, W, x: (
            old_columns(s, W, x) if s is None else old_columns(s, W, x).roll(1, 1)
        )
    ),
    "C14 state of token 0": RIGHT.replaced(final=of_token_0),
    "C15 fresh sequences read the slot": RIGHT.replaced(history=stale),
    "C17 always SiLU": RIGHT.replaced(act=lambda z, _: silu(z)),
    "C20 1 - sigmoid(-z) in bf16": RIGHT.replaced(
        act=lambda z, name: z * (1 - torch.sigmoid(-z).bfloat16().float()) if name else z
    ),
    "C21 bias in the slot of the residual": RIGHT.replaced(take=lambda s, w, b: summed(s, w, None)),
    "C23 a pack is one sequence": RIGHT.replaced(cut=one_stream),
    "sums in bf16": RIGHT.replaced(take=narrow_sums),
    "a weight without its low digits": RIGHT.replaced(take=truncated),
    "exp(z) / (1 + exp(z)) overflows": RIGHT.replaced(
        act=lambda z, name: z * z.exp() / (1 + z.exp()) if name else z
    ),
    "autograd of z / (1 + exp(-z))": RIGHT.replaced(
        act=lambda z, name: z / (1 + torch.exp(-z)) if name else z
    ),
    "tail of D": RIGHT.replaced(act=unmasked_tail),
    "taps reversed": RIGHT.replaced(take=lambda s, w, b: summed(s, w.flip(1), b)),
    "slope without z s (1 - s)": RIGHT.replaced(
        act=lambda z, name: Stopped.apply(z) if name else z
    ),
    "no gradient through the state": RIGHT.replaced(
        history=lambda s, W, x: old_columns(s, W, x).detach()
    ),
    "final state detached": RIGHT.replaced(final=lambda *parts: shifted_in(*parts).detach()),
}
"""C1 to C23 as in the list of public defects; what has no number is a classic."""


def adapted(parts: Parts, name: str) -> Any:
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

    return kv.kernel(op="short_conv", name=name, packing="cu_seqlens", dtypes=EVERY)(short_conv)


def faulty(name: str) -> Any:
    return adapted(FAULTS[name], name)


@kv.kernel(op="short_conv", conv_state="W-1", dtypes=EVERY, packing="cu_seqlens")
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


# Not fp16, whose gradient of a grouped convolution torch sums in fp16 on a CPU.
@kv.kernel(op="short_conv", dtypes=("fp32", "bf16"), contract="short-conv-stored")
def torch_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> Tensor:
    """As torch's modules compute it: the convolution returns x's type, SiLU takes that."""
    z = functional.conv1d(
        x.mT, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[2]
    )[..., : x.shape[1]].mT
    return functional.silu(z) if activation else z


@kv.kernel(op="short_conv", dtypes=EVERY, activation="none")
def plain(x: Tensor, weight: Tensor) -> Tensor:
    stream = functional.pad(x.float(), (0, 0, weight.shape[1] - 1, 0))
    return torch.einsum("btdw,dw->btd", stream.unfold(1, weight.shape[1], 1), weight.float()).to(
        x.dtype
    )


RIGHT_ONES: Final = {
    "in order": adapted(RIGHT, "in order"),
    "backwards": adapted(RIGHT.replaced(take=summed_backwards), "backwards"),
    "a state of W - 1": w_minus_one,
    "torch conv1d": torch_conv1d,
    "without activation": plain,
}
