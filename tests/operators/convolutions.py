"""Short convolutions in torch: conforming ones in several conventions,
and one with each planted fault.
"""

# pyright: basic
# Faults are lambdas in the place of typed parts, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import kdaverify as kv
from kdaverify.faults import catalogue, conforming_kernels
from kdaverify.faults.fault import Setting
from kdaverify.faults.short_conv import (
    EVERY,
    RIGHT,
    OneByOne,
    Parts,
    activated,
    adapted,
    old_columns,
    shifted_in,
    silu,
    summed,
    summed_backwards,
    w_minus_one,
)

PLAIN: Final = Setting(1.0, torch.Generator())


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


def unmasked_tail(z: Tensor, name: str | None) -> Tensor:
    return torch.where(
        torch.arange(z.shape[1])
        < z.shape[1] // 16 * 16 + (16 if z.shape[1] % 16 == 0 else z.shape[1] % 16 - 1),
        activated(z, name),
        z,
    )


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


@dataclass(frozen=True)
class BiasOfTwo(Parts):
    """The gradient of the bias is summed over the first two entries of a batch."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Any:
        state, cu, act = options

        def of(entries: slice, b: Tensor | None) -> Any:
            part = None if state is None else state[entries]
            return Parts.__call__(self, x[entries], weight, b, part, cu, act)

        if bias is None or len(x) <= 2:
            return of(slice(None), bias)
        halves = of(slice(2), bias), of(slice(2, None), bias.detach())
        return tuple(torch.cat(both) for both in zip(*halves, strict=True))


def bias_of_the_last_tile(stream: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The gradient of the bias is that of the last 64 rows."""
    z = summed(stream, w, None)
    before = (len(z) - 1) // 64 * 64
    return (
        z
        if b is None
        else z + torch.cat((b.detach().expand(before, -1), b.expand(len(z) - before, -1)))
    )


FAULTS: Final[Mapping[str, Parts]] = {
    **{
        fault.id: fault.patch(PLAIN)
        for fault in catalogue.FAULTS.values()
        if fault.operator == "short_conv"
    },
    "sums in bf16": RIGHT.replaced(take=narrow_sums),
    "a weight without its low digits": RIGHT.replaced(take=truncated),
    "exp(z) / (1 + exp(z)) overflows": RIGHT.replaced(
        act=lambda z, name: z * z.exp() / (1 + z.exp()) if name else z
    ),
    "autograd of z / (1 + exp(-z))": RIGHT.replaced(
        act=lambda z, name: z / (1 + torch.exp(-z)) if name else z
    ),
    "tail of D": RIGHT.replaced(act=unmasked_tail),
    "gradients of parameters added over sequences in 16 bits": OneByOne(**vars(RIGHT)),
    "bias of two entries": BiasOfTwo(**vars(RIGHT)),
    "bias of the last tile": RIGHT.replaced(take=bias_of_the_last_tile),
    "taps reversed": RIGHT.replaced(take=lambda s, w, b: summed(s, w.flip(1), b)),
    "slope without z s (1 - s)": RIGHT.replaced(
        act=lambda z, name: Stopped.apply(z) if name else z
    ),
    "no gradient through the state": RIGHT.replaced(
        history=lambda s, W, x: old_columns(s, W, x).detach()
    ),
    "final state detached": RIGHT.replaced(final=lambda *parts: shifted_in(*parts).detach()),
}
"""Those of the catalogue by id; what has no number is a classic."""


def faulty(name: str) -> Any:
    return adapted(FAULTS[name], name)


# Not fp16, whose gradient of a grouped convolution torch sums in fp16 on a CPU. With one channel,
# where it is no grouped convolution, torch sums that of bf16 in bf16.
@kv.kernel(op="short_conv", dtypes=("fp32", "bf16"), contract="short-conv-stored+taps")
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


@kv.kernel(op="short_conv", dtypes=EVERY, contract="short-conv-taps")
def tap_by_tap(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> Tensor:
    """Every tap of x is widened by itself: autograd sums the terms of dx in x's type."""
    stream, T = functional.pad(x, (0, 0, weight.shape[1] - 1, 0)), x.shape[1]
    z = torch.zeros(()) if bias is None else bias.float()
    for j in range(weight.shape[1]):
        z = z + stream[:, j : j + T].float() * weight[:, j].float()
    return (silu(z) if activation else z).to(x.dtype)


RIGHT_ONES: Final = {
    "in order": adapted(RIGHT, "in order"),
    "backwards": adapted(RIGHT.replaced(take=summed_backwards), "backwards"),
    "a state of W - 1": w_minus_one,
    "torch conv1d": torch_conv1d,
    "tap by tap": tap_by_tap,
    "without activation": plain,
    "by tanh": conforming_kernels.conv_tanh,
    "one by one": conforming_kernels.conv_one_by_one,
}
