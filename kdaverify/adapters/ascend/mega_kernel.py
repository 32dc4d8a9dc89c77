"""The call interface of megagdn-pto's fused KDA kernel: its pointers, in order, as data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from kdaverify.budgets.presets import preset

WIDTH: Final = 128
CHUNK: Final = preset("ascend_pto", "fp16").chunk_size
ENTRY: Final = "call_kernel"

Role = Literal["input", "constant", "output", "scratch"]


@dataclass(frozen=True)
class BufferSizes:
    """What the buffers' shapes depend on: tokens and heads in all, chunks, blocks launched."""

    T: int
    HV: int
    chunks: int
    blocks: int


@dataclass(frozen=True)
class Pointer:
    """One pointer argument.

    Args:
        name: as the kernel's source calls it, without _hm (head-major) and _ptr.
        role: input, constant (the same for every call), output, or scratch.
        dtype: of what it points to.
        shape: of the same.
    """

    name: str
    role: Role
    dtype: torch.dtype
    shape: Callable[[BufferSizes], tuple[int, ...]]


def _square(_: BufferSizes) -> tuple[int, ...]:
    return CHUNK, CHUNK


def _head_major(s: BufferSizes) -> tuple[int, ...]:
    return s.HV, s.T, WIDTH


def _token_major(s: BufferSizes) -> tuple[int, ...]:
    return s.T, s.HV, WIDTH


def _per_block(count: int, rows: int) -> Callable[[BufferSizes], tuple[int, ...]]:
    return lambda s: (s.blocks * count, rows, WIDTH)


_HALF, _FLOAT = torch.float16, torch.float32
POINTERS: Final[tuple[Pointer, ...]] = (
    Pointer("q", "input", _HALF, _head_major),
    Pointer("k", "input", _HALF, _head_major),
    Pointer("v", "input", _HALF, _token_major),
    Pointer("g", "input", _HALF, _token_major),
    Pointer("beta", "input", _HALF, lambda s: (s.HV, s.T)),
    Pointer("mask_strict", "constant", _FLOAT, _square),
    Pointer("mask_incl", "constant", _FLOAT, _square),
    Pointer("minus_id", "constant", _HALF, _square),
    Pointer("cu_seqlens", "input", torch.int32, lambda _: (0,)),
    Pointer("o", "output", _HALF, _token_major),
    Pointer("g_sum", "scratch", _FLOAT, _token_major),
    Pointer("g_cs", "scratch", _FLOAT, _head_major),
    Pointer("L", "scratch", _HALF, lambda s: (s.T, s.HV, CHUNK)),
    Pointer("A_inv", "scratch", _HALF, lambda s: (s.T, s.HV, CHUNK)),
    Pointer("u", "scratch", _HALF, _token_major),
    Pointer("w", "scratch", _HALF, _token_major),
    Pointer("s", "output", _HALF, lambda s: (s.chunks, s.HV, WIDTH, WIDTH)),
    Pointer("v_corr", "scratch", _HALF, _token_major),
    Pointer("kkt_ws_in", "scratch", _FLOAT, _per_block(2, 2 * CHUNK)),
    Pointer("kkt_ws_out", "scratch", _FLOAT, _per_block(2, CHUNK)),
    Pointer("wy_ws_a2", "scratch", _HALF, _per_block(1, CHUNK)),
    Pointer("wy_ws_keff", "scratch", _HALF, _per_block(1, CHUNK)),
    Pointer("h_ws", "scratch", _HALF, _per_block(5, WIDTH)),
    Pointer("o_ws", "scratch", _FLOAT, _per_block(7, WIDTH)),
)
"""In the order of the C function, between (block_dim, stream) and the five scalars."""

SCALARS: Final = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32)
"""batch (sequences), seq_len, total_tokens, matrices to invert (chunks of all heads), heads."""

ARGUMENTS: Final = (ctypes.c_uint32, ctypes.c_void_p, *(ctypes.c_void_p,) * len(POINTERS), *SCALARS)


def constants() -> dict[str, Tensor]:
    """The masks and the negative identity that every call is given."""
    ones = torch.ones(CHUNK, CHUNK)
    return {"mask_strict": ones.tril(-1), "mask_incl": ones.tril(), "minus_id": -torch.eye(CHUNK)}
