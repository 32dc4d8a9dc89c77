"""Gated RMSNorms in torch: the right one, and one with each fault."""

# pyright: basic
# Faults are lambdas in the place of typed functions, and functions of autograd, which has no types.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault, with_gradients

EVERY: Final = ("fp32", "bf16", "fp16")
Norm = Callable[[Tensor, Tensor, Tensor, float, str], Tensor]


def act(z: Tensor, name: str) -> Tensor:
    return z * torch.sigmoid(z) if name == "silu" else torch.sigmoid(z)


def root(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def right(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return x * root(x, eps) * w * act(z, name)


def by_division(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return act(z, name) * (w * (x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)))


class Renormed(torch.autograd.Function):
    """The backward takes the normalised rows for the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        n = x * root(x, eps)
        ctx.save_for_backward(n)
        ctx.eps = eps
        return n

    @staticmethod
    def backward(ctx: Any, p: Tensor) -> tuple[Tensor, None]:
        (n,) = ctx.saved_tensors
        r = root(n, ctx.eps)
        again = n * r
        return r * (p - again * (p * again).mean(-1, keepdim=True)), None


def crossed(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    x, z = with_gradients(lambda dx, _: (dx, dx), x, z)
    return right(x, z, w, eps, name)


def in_groups(
    x: Tensor, z: Tensor, w: Tensor, eps: float, name: str, *, width: int | None = None
) -> Tensor:
    parts = [part * root(part, eps) for part in x.split(width or max(1, x.shape[-1] // 2), -1)]
    return torch.cat(parts, -1) * w * act(z, name)


def in_heads(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """A row of several heads of 128 is normalised by head."""
    V = x.shape[-1]
    return in_groups(x, z, w, eps, name, width=V if V % 128 else 128)


def renormed(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return Renormed.apply(x, eps) * w * act(z, name)


def counted_in_16_bits(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    y = right(x, z, w, eps, name)
    rows = y.flatten(0, -2)
    return rows[torch.arange(len(rows)) % 2**16].view_as(y)


class OneRank(torch.autograd.Function):
    """The weight's gradient is the share of one of two ranks: of the even rows."""

    @staticmethod
    def forward(ctx: Any, n: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(n, w)
        return n * w

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        n, w = ctx.saved_tensors
        return dy * w, (dy * n).flatten(0, -2)[::2].sum(0)


def of_one_rank(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return OneRank.apply(x * root(x, eps), w) * act(z, name)


class TilesOfRows(torch.autograd.Function):
    """The weight of every row; a program sums the gradient of some rows, and stores it as y."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, rows: int, stored: torch.dtype, size: int) -> Tensor:
        ctx.stored, ctx.size = stored, size
        return w.expand(rows, len(w)).clone()

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor, None, None, None]:
        parts = [tile.sum(0).to(ctx.stored) for tile in dw.split(ctx.size)]
        return torch.stack(parts).to(dw.dtype).sum(0), None, None, None


def by_tanh(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    s = 0.5 + 0.5 * torch.tanh(0.5 * z)
    return x * root(x, eps) * w * (z * s if name == "silu" else s)


@kernel(op="gated_rms_norm", dtypes=EVERY, contract="gated-rms-norm+partials")
def in_partial_sums(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    w = TilesOfRows.apply(weight.float(), x[..., 0].numel(), x.dtype, 8).view(x.shape)
    return right(x.float(), gate.float(), w, eps, activation).to(x.dtype)


def adapted(
    norm: Norm,
    name: str,
    dtypes: tuple[str, ...] = EVERY,
    wide: torch.dtype = torch.float32,
    contract: str = "gated-rms-norm",
) -> Any:
    """The implementation of a norm, computed in `wide`."""

    def gated_rms_norm(
        x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
    ) -> Tensor:
        rows, gates, weights = (tensor.to(wide) for tensor in (x, gate, weight))
        return norm(rows, gates, weights, eps, activation).to(x.dtype)

    given: dict[str, Any] = {"name": name, "dtypes": dtypes, "contract": contract}
    return kernel(op="gated_rms_norm", **given)(gated_rms_norm)


@kernel(op="gated_rms_norm", dtypes=EVERY, contract="gated-rms-norm-stored")
def three_roundings(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    """As in model files: the normalised row, and its product with the weight, in x's type."""
    wide = x.float()  # once: autograd adds the gradients of every cast in x's type
    normed = (wide * root(wide, eps)).to(x.dtype)
    return (weight * normed * act(gate.float(), activation)).to(x.dtype)


def planted(norm: Norm | None, fault: Fault) -> Any:
    """The implementation with a fault; without one, the right one that it is held against."""
    name = f"fault:{fault.id}"
    return adapted(norm or right, name, fault.dtypes)


_norm = partial(Fault, operator="gated_rms_norm", stage="gated_rms_norm", dtypes=EVERY)
FAULTS: Final = (
    _norm("NORM-N1", "SiLU for the sigmoid gate", "vllm-project/vllm#40245", "A", "a sigmoid gate",
          ("y",), lambda _: lambda x, z, w, eps, _: right(x, z, w, eps, "silu")),
    _norm("NORM-N2", "a sigmoid for the SiLU gate", "Avarok-Cybersecurity/atlas#753, #754", "A",
          "a SiLU gate", ("y",), lambda _: lambda x, z, w, eps, _: right(x, z, w, eps, "sigmoid")),
    _norm("NORM-N4", "the gradient of x is returned for that of the gate", "fla-org/fla#155", "A",
          "any", ("dgate",), lambda _: crossed),
    _norm("NORM-N6", "groups of half the width", "state-spaces/mamba#908, #916, #951", "A", "any",
          ("y",), lambda _: in_groups),
    _norm("NORM-N8", "the weight is not passed", "1bit-MONSTER/1bit-MONSTER#1154", "A",
          "a weight other than 1", ("y",),
          lambda _: lambda x, z, w, eps, name: right(x, z, torch.ones_like(w) + 0 * w, eps, name)),
    _norm("NORM-N11", "the backward takes normalised rows for the rows",
          "state-spaces/mamba#885, #919", "A", "any", ("dx",), lambda _: renormed),
    _norm("NORM-N14", "the weight is kept in 16 bits",
          "NVIDIA/Megatron-LM#3634; NVIDIA-NeMo/Automodel#2484", "C", "a weight of fp32", ("y",),
          lambda _: lambda x, z, w, eps, name: right(x, z, w.bfloat16().float(), eps, name),
          dtypes=("fp32", "fp16")),
    _norm("NORM-L7", "the weight's gradient is not summed over two ranks",
          "NVIDIA/Megatron-LM#7452", "A", "more than one row", ("dweight",), lambda _: of_one_rank),
    _norm("NORM-rows", "rows are counted in 16 bits",
          "class: index width, grids of at most 65,535 programs", "F", "more than 65,536 rows",
          ("y",), lambda _: counted_in_16_bits),
    _norm("NORM-groups", "rows of whole heads of 128 are normalised by head",
          "class: widths of models", "B", "a width of 256, 384, ...", ("y",), lambda _: in_heads),
    _norm(
        "NORM-weight",
        "a weight of small mean is taken for one stored less 1",
        "class: a convention guessed from the data",
        "A",
        "a weight near 0",
        ("y",),
        lambda _: (
            lambda x, z, w, eps, name: right(x, z, w + (w.mean() < 0.3).to(w.dtype), eps, name)
        ),
    ),
)  # fmt: skip
