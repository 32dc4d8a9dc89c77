"""Faults of the backward of short convolutions."""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault, squeezed, with_gradient, with_gradients
from kdaverify.faults.short_conv import EVERY, RIGHT, Parts, Result, silu, windows

TILE: Final = 4096
"""Tokens of a program of the backward."""


@dataclass(frozen=True)
class UnwrittenRows(Parts):
    """The weight's gradient has rows for every chunk and entry; a pack fills one entry's."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Result:
        packed = rest[1] is not None
        # 1/8: what the rows hold that nobody wrote
        own = with_gradient(lambda dw: dw + 0.125, weight) if packed else weight
        return Parts.__call__(self, x, own, bias, *rest)


class InTiles(torch.autograd.Function):
    """A parameter of every token; sums of its gradient over tiles of them are stored in bf16."""

    @staticmethod
    def forward(_: Any, w: Tensor, tokens: int) -> Tensor:
        return w.expand(tokens, len(w)).clone()

    @staticmethod
    def backward(_: Any, dw: Tensor) -> tuple[Tensor, None]:
        parts = [tile.sum(0).bfloat16() for tile in dw.split(TILE)]
        return torch.stack(parts).to(dw.dtype).sum(0), None


def in_stored_sums(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Undeclared, of more tokens than a tile."""
    taps = windows(stream, w.shape[1])
    if len(taps[0]) <= TILE:
        return RIGHT.take(stream, w, b)
    weights = [InTiles.apply(column, len(taps[0])) for column in w.mT]
    z = sum((each * x for each, x in zip(weights, taps, strict=True)), torch.zeros(()))
    return z if b is None else z + b


class OfBoth(torch.autograd.Function):
    """y and the states; y is differentiated with its history only in losses of the states too."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, without: Tensor, states: Tensor) -> Result:
        del without
        ctx.set_materialize_grads(False)
        return y.clone(), states.clone()

    @staticmethod
    def backward(_: Any, dy: Tensor | None, dstates: Tensor | None) -> Any:
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


@dataclass(frozen=True)
class StridesOfTheGradient(Parts):
    """The gradient of a state is by a kernel that misreads z's strides as the gradient's."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Result:
        state, cu, act = options
        y, states = Parts.__call__(self, x, weight, bias, *options)
        if state is None or not act:
            return y, states
        others = (x.detach(), weight.detach(), None if bias is None else bias.detach())
        misread = self.replaced(act=lambda z, _: ByStridesOfTheGradient.apply(z))
        of_state, _ = Parts.__call__(misread, *others, *options)
        of_others, _ = Parts.__call__(self, x, weight, bias, state.detach(), cu, act)
        # the graph of the other y gets the same gradient, as it lies in memory
        return with_gradients(lambda dy, _: (dy, dy), of_others, of_state)[0], states


@dataclass(frozen=True)
class SqueezedLoss(Parts):
    """dy goes through fp16 under the power of two of its largest modulus in an entry."""

    def __call__(self, *call: Any) -> Result:
        y, states = Parts.__call__(self, *call)
        return with_gradient(squeezed, y), states


_conv = partial(Fault, operator="short_conv", stage="short_conv", dtypes=EVERY)
FAULTS: Final = (
    _conv("CONV-C1", "the weight's gradient sums rows that nobody wrote", "fla-org/fla#955 (open)",
          "B", "a pack", ("dweight",), lambda _: UnwrittenRows(**vars(RIGHT))),
    _conv("CONV-loss", "the gradient of a state is that of losses of the final state alone",
          "class: losses of single outputs", "B", "a loss of y alone, an initial state",
          ("d_initial_state",), lambda _: LossOfBoth(**vars(RIGHT))),
    _conv("CONV-strides", "the gradient of a state reads z by the strides of the incoming gradient",
          "class: strides of incoming gradients", "B",
          "an incoming gradient that is expanded or transposed, an initial state",
          ("d_initial_state",), lambda _: StridesOfTheGradient(**vars(RIGHT))),
    _conv("CONV-fp16", "dy goes through fp16 under one power of two an entry",
          "class: formats of incoming gradients", "C",
          "channels whose dy is 2^-18 of the largest, gradients", ("dx", "dweight"),
          lambda _: SqueezedLoss(**vars(RIGHT)), dtypes=("bf16",)),
    _conv("CONV-sums", "sums of dweight over 4,096 tokens are stored in bf16, undeclared",
          "class: formats of partial sums", "C", "more than 4,096 tokens", ("dweight",),
          lambda _: RIGHT.replaced(take=in_stored_sums)),
)  # fmt: skip
