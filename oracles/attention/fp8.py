"""Rows of a cache in FP8, as bytes: FlashMLA's layout for DeepSeek V3.2.

A row of d_v latent columns and r others is d_v codes of e4m3, one fp32 scale for every tile of 128
of them, and the r others in bf16: 656 bytes at 512 and 64.
Source: vllm/third_party/flashmla/flash_mla_interface.py of vLLM 0.33.0, flash_mla_with_kvcache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

TILE: Final = 128
"""Values of one scale."""
LARGEST: Final = 448.0
"""Of e4m3."""
SUBNORMAL: Final = 7 * 2.0**-9
"""The largest subnormal number of e4m3."""
SMALLEST_SCALE: Final = 1.0e-4
"""What the writer of the library keeps scales above."""


@dataclass(frozen=True)
class Fp8Rows:
    """Rows of a quantised cache.

    Args:
        codes: [..., d_v] uint8, e4m3; scales: [..., d_v / 128] fp32; others: [..., r] bf16.
    """

    codes: Tensor
    scales: Tensor
    others: Tensor

    @property
    def values(self) -> Tensor:
        """[..., d_v] What the codes stand for, without scales; NaN for 0x7f and 0xff."""
        return self.codes.view(torch.float8_e4m3fn).double()


def of_bytes(cache: Tensor, d_v: int) -> Fp8Rows:
    """The parts of rows [..., bytes]."""
    scaled = d_v + 4 * (d_v // TILE)
    parts = cache[..., :d_v], cache[..., d_v:scaled], cache[..., scaled:]
    codes, scales, others = (part.contiguous() for part in parts)
    return Fp8Rows(codes, scales.view(torch.float32), others.view(torch.bfloat16))


def as_bytes(rows: Fp8Rows) -> Tensor:
    """[..., bytes] uint8."""
    parts = (rows.codes, rows.scales, rows.others)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def dequantised(rows: Fp8Rows) -> Tensor:
    """[..., d_v + r] in float64: a code has 4 significant bits, a scale 24, a product is exact."""
    spread = rows.scales.double().repeat_interleave(TILE, -1)
    return torch.cat((rows.values * spread, rows.others.double()), -1)


def quantised(x: Tensor, d_v: int, *, powers: bool, largest: float = LARGEST) -> Fp8Rows:
    """Rows [..., d_v + r] as a writer stores them, the nearest code of each value.

    Math: scale = max(amax / largest, 1e-4) of each tile, or the power of two that is not below it.

    Args:
        powers: whether scales are powers of two, as the library writes them.
        largest: of the codes.
    """
    tiles = x[..., :d_v].double().unflatten(-1, (-1, TILE))
    scales = (tiles.abs().amax(-1) / largest).clamp(min=SMALLEST_SCALE)
    scales = scales.log2().ceil().exp2() if powers else scales
    scales = scales.float()
    found = (tiles / scales.double()[..., None]).clamp(-LARGEST, LARGEST).flatten(-2)
    codes = found.float().to(torch.float8_e4m3fn).view(torch.uint8)
    return Fp8Rows(codes, scales, x[..., d_v:].to(torch.bfloat16))
