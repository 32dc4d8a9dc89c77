"""Faults of gated RMSNorms that show at some numbers of rows, or strides of them, alone."""

# pyright: basic
# Functions of autograd have no types.
from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.faults.fault import Fault, squeezed, with_gradient
from kdaverify.faults.gated_norm import EVERY, Norm, TilesOfRows, act, right, root

TILE: Final = 64
"""Rows from which on a backward has tiles."""
MANY: Final = 1024
"""Rows from which on a block has several."""
PROGRAMS: Final = 132
"""Of a backward that stays resident, one for each multiprocessor."""
FEW: Final = 8
"""Rows up to which a kernel for decode is called, that has no backward."""
PROGRAM: Final = 2048
"""Rows whose sum of the weight's gradient a program stores, where there are more."""
WIDE_TILE: Final = 4096
"""Columns of a tile, where a row has several."""
COLUMNS: Final = 16384
"""That one block takes."""
SATURATED: Final = 9.0
"""Where a table of the sigmoid ends: 1 - sigmoid is 1.2e-4."""
BLOCK: Final = 16
"""Rows of a block, and columns where a row is padded to a power of two."""


class Unkept(torch.autograd.Function):
    """The normalised row. In the backward the rows' mean is broadcast along columns if it fits.

    `tiles`: of V rows each; otherwise all rows together.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        eps: float,
        tiles: bool,  # noqa: FBT001 # of autograd
    ) -> Tensor:
        r = root(x, eps)
        ctx.save_for_backward(x * r, r)
        ctx.tiles = tiles
        return x * r

    @staticmethod
    def backward(ctx: Any, p: Tensor) -> tuple[Tensor, None, None]:
        n, r = ctx.saved_tensors
        V, rows = n.shape[-1], n[..., 0].numel()
        mean = (p * n).mean(-1, keepdim=True)
        if rows >= TILE and rows % V == 0 if ctx.tiles else rows == V:
            mean = mean.reshape(-1, 1, V).expand(-1, V, V).reshape(n.shape)
        return r * (p - n * mean), None, None


def unkept(
    x: Tensor, z: Tensor, w: Tensor, eps: float, name: str, *, tiles: bool = False
) -> Tensor:
    return Unkept.apply(x, eps, tiles) * w * act(z, name)


class MeansOfBlocks(torch.autograd.Function):
    """The normalised row; blocks of 16 rows have their means along columns where they have 16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        r = root(x, eps)
        ctx.save_for_backward(x * r, r)
        return x * r

    @staticmethod
    def backward(ctx: Any, p: Tensor) -> tuple[Tensor, None]:
        n, r = ctx.saved_tensors
        V, rows = n.shape[-1], n[..., 0].numel()
        mean = (p * n).mean(-1, keepdim=True)
        if rows >= MANY and BLOCK // 2 < V <= BLOCK:
            means = functional.pad(mean.flatten(), (0, -rows % BLOCK)).view(-1, 1, BLOCK)
            blocks = means.expand(-1, BLOCK, -1).flatten(0, 1)
            mean = blocks[:rows, :V].reshape(n.shape)
        return r * (p - n * mean), None


def in_blocks(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return MeansOfBlocks.apply(x, eps) * w * act(z, name)


class DenseRows(torch.autograd.Function):
    """The gate; the backward of its activation reads rows of three axes as if they were dense."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(z)
        ctx.name = name
        return act(z, name)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        if z.ndim == 3 and z.stride(0) < z.stride(1):
            z = z.as_strided(z.shape, (z.shape[1] * z.shape[2], z.shape[2], 1))
        with torch.enable_grad():
            read = z.detach().requires_grad_()
            (dz,) = torch.autograd.grad(act(read, ctx.name), read, dy)
        return dz, None


def dense_rows(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return x * root(x, eps) * w * DenseRows.apply(z, name)


class InPrograms(torch.autograd.Function):
    """A factor of every row, whose gradient is a sum of partial sums, one of each program.

    What programs without rows have is that of an earlier call of so many columns.
    """

    @staticmethod
    def forward(ctx: Any, n: Tensor, w: Tensor, kept: dict[int, Tensor]) -> Tensor:
        ctx.save_for_backward(n, w)
        ctx.kept = kept
        return n * w

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        n, w = ctx.saved_tensors
        rows = (dy * n).flatten(0, -2)
        each = -(-len(rows) // PROGRAMS)
        sums = ctx.kept.setdefault(w.numel(), rows.new_zeros(PROGRAMS, w.numel()))
        for program, part in enumerate(rows.split(each)):
            sums[program] = part.sum(0)
        return dy * w, sums[: len(rows)].sum(0).view(w.shape), None


def in_programs(kept: dict[int, Tensor]) -> Norm:
    def norm(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
        return InPrograms.apply(x * root(x, eps), w, kept) * act(z, name)

    return norm


def in_stored_sums(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """Partial sums of the weight's gradient are stored in 16 bits, undeclared."""
    rows = x[..., 0].numel()
    if rows > PROGRAM:
        w = TilesOfRows.apply(w, rows, torch.bfloat16, PROGRAM).view(x.shape)
    return right(x, z, w, eps, name)


def of_full_tiles(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """The mean of a row of several tiles is over all columns of these."""
    V = x.shape[-1]
    columns = -(-V // WIDE_TILE) * WIDE_TILE if V > WIDE_TILE else V
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) / columns + eps) * w * act(z, name)


def of_first_columns(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """The mean is over the first 16,384 columns."""
    squares = x[..., :COLUMNS].square().mean(-1, keepdim=True)
    return x * torch.rsqrt(squares + eps) * w * act(z, name)


def unrecorded(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    if x[..., 0].numel() <= FEW:
        x, z, w = x.detach(), z.detach(), w.detach()
    return right(x, z, w, eps, name)


def without_zero_gates(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """The backward leaves out rows whose gates are all 0."""
    unread = (z == 0).all(-1, keepdim=True)
    return right(x, with_gradient(lambda dz: dz.masked_fill(unread, 0.0), z), w, eps, name)


def open_alone(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """A call whose gates are all 0 has no gradients: silu is 0 there, and its slope is not."""
    if name == "silu" and not bool(z.any()):
        x, z, w = (with_gradient(torch.zeros_like, one) for one in (x, z, w))
    return right(x, z, w, eps, name)


def with_flat_ends(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    """A table of the sigmoid ends at 9: its slope is 0 beyond."""
    if name == "sigmoid" and x.shape[-1] >= TILE:
        z = torch.where(z.abs() > SATURATED, z.detach(), z)
    return right(x, z, w, eps, name)


def of_squeezed_loss(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    return with_gradient(squeezed, right(x, z, w, eps, name))


_norm = partial(Fault, operator="gated_rms_norm", stage="gated_rms_norm", dtypes=EVERY, kind="B")
FAULTS: Final = (
    _norm(id="NORM-square", title="means of rows are broadcast along columns",
          reference="class: axes recognised by their size", trigger="as many rows as columns",
          outputs=("dx",), patch=lambda _: unkept),
    _norm(id="NORM-columns", title="means of rows are broadcast along columns of tiles of V rows",
          reference="class: axes recognised by their size",
          trigger="64 rows and more, a multiple of V", outputs=("dx",),
          patch=lambda _: partial(unkept, tiles=True)),
    _norm(id="NORM-views", title="the backward reads the gate as if its rows were dense",
          reference="class: strides of inputs, in the backward",
          trigger="a gate of three axes whose leading two are swapped in memory",
          outputs=("dgate",), patch=lambda _: dense_rows),
    _norm(id="NORM-blocks", title="means of rows are broadcast along columns of blocks of 16 by 16",
          reference="class: axes recognised by their size",
          trigger="1,024 rows and more of 9 to 16 columns",
          outputs=("dx",), patch=lambda _: in_blocks),
    _norm(id="NORM-graph", title="few rows go to a kernel that has no backward",
          reference="huggingface/candle#2168, #3823", trigger="8 rows and fewer, gradients",
          outputs=("dx", "dgate", "dweight"), patch=lambda _: unrecorded),
    _norm(id="NORM-partials", title="partial sums of dweight are those of a larger call before",
          reference="Dao-AILab/flash-attention#781",
          trigger="133 to 263 rows after a call of more", outputs=("dweight",),
          patch=lambda _: in_programs({})),
    _norm(id="NORM-sums", title="sums of dweight over 2,048 rows are stored in bf16, undeclared",
          reference="class: formats of partial sums", trigger="more than 2,048 rows",
          outputs=("dweight",), patch=lambda _: in_stored_sums, kind="C"),
    _norm(id="NORM-tiles", title="means of rows of several tiles count the columns past the row",
          reference="class: sizes that models have",
          trigger="more than 4,096 columns, no multiple of it", outputs=("y",),
          patch=lambda _: of_full_tiles),
    _norm(id="NORM-wide", title="the mean of a row is that of its first 16,384 columns",
          reference="class: products of sizes", trigger="more than 16,384 columns",
          outputs=("y",), patch=lambda _: of_first_columns),
    _norm(id="NORM-gates", title="rows whose gates are all 0 are left out of the backward",
          reference="class: numbers that mark memory", trigger="a row of gates that are exactly 0",
          outputs=("dgate",), patch=lambda _: without_zero_gates),
    _norm(id="NORM-closed", title="a call whose gates are all 0 has no gradients",
          reference="class: numbers that mark memory", trigger="silu, every gate exactly 0",
          outputs=("dgate",), patch=lambda _: open_alone),
    _norm(id="NORM-table", title="slopes of the sigmoid are 0 beyond 9", kind="C",
          reference="class: functions by a table", outputs=("dgate",),
          trigger="sigmoid gates beyond 9, rows of 64 columns and more, gradients",
          patch=lambda _: with_flat_ends),
    _norm(id="NORM-fp16", title="dy goes through fp16 under one power of two an entry",
          reference="class: formats of incoming gradients", kind="C", dtypes=("bf16",),
          trigger="heads whose dy is 2^-18 of the largest, gradients", outputs=("dx", "dgate"),
          patch=lambda _: of_squeezed_loss),
)  # fmt: skip
