"""dx of a convolution that is summed tap by tap in 16 bits, as torch's own is in fp16 on many CPUs:
the word +taps admits it, a failure names it, and faults stay faults under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operators.short_conv.problem import ShortConvProblem

PROBLEMS: Final = tuple(
    ShortConvProblem(
        dtype="fp16", B=2, T=T, D=9, W=7, bias=True, activation="none", state="random", seed=seed
    )
    for T in (4, 40)
    for seed in range(3)
)
Sum = Callable[[Tensor, Tensor, int], Tensor]


def in_turn(do: Tensor, weight: Tensor, columns: int) -> Tensor:
    """dx [B, D, T + W - 1], each term and each sum rounded."""
    T, dx = do.shape[-1], do.new_zeros(*do.shape[:2], columns)
    for j in range(weight.shape[-1]):
        dx[..., j : j + T] += do * weight[:, j, None]
    return dx


def without_the_first(do: Tensor, weight: Tensor, columns: int) -> Tensor:
    return in_turn(do, torch.cat((torch.zeros_like(weight[:, :1]), weight[:, 1:]), 1), columns)


def in_bf16(do: Tensor, weight: Tensor, columns: int) -> Tensor:
    return in_turn(do.bfloat16(), weight.bfloat16(), columns).to(do.dtype)


class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stream: Tensor, weight: Tensor, sums: Sum) -> Tensor:
        ctx.save_for_backward(stream, weight)
        ctx.sums = sums
        taps = stream.float().unfold(2, weight.shape[1], 1)
        return (taps * weight.float()[:, None]).sum(-1)

    @staticmethod
    def backward(ctx: Any, *dz: Tensor) -> tuple[Tensor, Tensor, None]:
        stream, weight = ctx.saved_tensors
        do, taps = dz[0].to(stream.dtype), stream.float().unfold(2, weight.shape[1], 1)
        dweight = (taps * do.float()[..., None]).sum((0, 2)).to(weight.dtype)
        return ctx.sums(do, weight, stream.shape[2]), dweight, None


def kernel(contract: str, sums: Sum = in_turn) -> Adapter:
    @kv.kernel(op="short_conv", dtypes="fp16", contract=contract)
    def conv(x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any) -> Any:
        D, W = weight.shape
        before = x.new_zeros(x.shape[0], D, W) if initial_state is None else initial_state
        stream = torch.cat((before, x.mT), 2)
        apply: Any = Convolution.apply  # pyright: ignore[reportUnknownMemberType]
        z = apply(stream[..., 1:], weight, sums)
        z = (z if bias is None else z + bias.float()[:, None]).mT.to(x.dtype)
        y = torch.nn.functional.silu(z) if activation == "silu" else z
        return y, stream[..., -W:].clone()

    return conv


def rejected(adapter: Any) -> Iterator[tuple[PropertyCase, Outcome]]:
    detail = {"of": "y"}
    for problem in PROBLEMS:
        for one in check("gradients", adapter, problem, detail):
            if one.status.rejects:
                yield PropertyCase("gradients", problem, detail), one


def test_sums_of_taps_in_16_bits_are_declared() -> None:
    assert not [*rejected(kernel("short-conv-stored+taps"))]
    plain = kernel("short-conv-stored")
    case, found = next(rejected(plain))
    assert found.output == "dx"
    said = plain.operator.explain_error(case, plain, until=math.inf)
    assert "within the tolerance of short-conv-stored+taps" in said


def test_a_tap_left_out_and_fewer_bits_are_no_such_sum() -> None:
    assert any(rejected(kernel("short-conv-stored+taps", without_the_first)))
    assert any(rejected(kernel("short-conv-stored+taps", in_bf16)))
