"""Number formats: how many bits a stored tensor, an operand or an accumulator keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Args:
        name: fp64, fp32, tf32, bf16 or fp16; for mailboxes also e4m3 or e5m2, and any with -tile.
        dtype: the torch type that holds it (TF32 lives in float32).
        precision: bits of the significand, the hidden one included; unit roundoff is 2^-precision.
        min_normal: smallest normal number.
        tiled: whether matrices are stored with a power of two that fills the range.
    """

    name: str
    dtype: torch.dtype
    precision: int
    min_normal: float
    tiled: bool = False

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    def round(self, tensor: Tensor) -> Tensor:
        """`tensor` rounded to nearest into this format, in its own dtype; wider ones are no-ops."""
        if self.name == "tf32":
            return _round_tf32(tensor)
        dtype = tensor.dtype
        if self.tiled:
            scale = _tile_scale(tensor, torch.finfo(self.dtype).max)
            return (tensor * scale).to(self.dtype).to(dtype) / scale
        if dtype is self.dtype or _precision(dtype) <= self.precision:
            return tensor
        return tensor.to(self.dtype).to(dtype)

    def truncate(self, tensor: Tensor) -> Tensor:
        """`tensor` cut off to this format, returned in its own dtype."""
        if self.name == "tf32":
            return truncate_tf32(tensor)
        nearest = self.round(tensor)
        away = nearest.abs() > tensor.abs()
        if not bool(away.any()):
            return nearest
        narrow = nearest.to(self.dtype)
        bits = narrow.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[narrow.element_size()])
        # one less in sign and magnitude: towards zero
        cut = (bits - 1).view(self.dtype).to(tensor.dtype)
        # Integers carry no gradient: of a reference kernel by autograd d_initial_state was off by
        # its own size, and any other passed. What is cut off is exact in the format of `tensor`.
        return torch.where(away, tensor + (cut - tensor).detach(), nearest)


@cache
def _precision(dtype: torch.dtype) -> int:
    """Bits of the significand; kept, as `torch.finfo` takes a tenth of what rounding takes."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))


def _tile_scale(tensor: Tensor, largest: float) -> Tensor:
    """[..., 1, 1] the power of two that brings each matrix's maximum near `largest`; or 1."""
    peak = tensor.abs().amax((-2, -1), keepdim=True)
    exponent = torch.frexp(largest / peak).exponent - 1
    return torch.where(peak > 0, torch.exp2(exponent.to(tensor.dtype)), torch.ones_like(peak))


# Bits of the fraction: fp32 has 23, TF32 has 10.
_TF32_DROPS = 13


def _round_tf32(tensor: Tensor) -> Tensor:
    # Ties away from zero: the rule of the hardware's fp32 -> TF32 conversion.
    bits = tensor.to(torch.float32).view(torch.int32)
    halfway_up = (bits + (1 << (_TF32_DROPS - 1))).view(torch.float32)
    return truncate_fp32(halfway_up, bits=_TF32_DROPS).to(tensor.dtype)


def truncate_fp32(tensor: Tensor, *, bits: int) -> Tensor:
    """`tensor` in fp32 with its lowest bits cut off."""
    return (
        (tensor.to(torch.float32).view(torch.int32) & -(1 << bits))
        .view(torch.float32)
        .to(tensor.dtype)
    )


def truncate_tf32(tensor: Tensor) -> Tensor:
    """`tensor` as a matrix unit reads unconverted fp32 operands: without the 13 low bits."""
    return truncate_fp32(tensor, bits=_TF32_DROPS)


FORMATS = {
    f.name: f
    for f in (
        Format("fp64", torch.float64, 53, 2.0**-1022),
        Format("fp32", torch.float32, 24, 2.0**-126),
        Format("tf32", torch.float32, 11, 2.0**-126),
        Format("bf16", torch.bfloat16, 8, 2.0**-126),
        Format("fp16", torch.float16, 11, 2.0**-14),
    )
}


def tiled(fmt: Format) -> Format:
    """`fmt` with a scale for every matrix."""
    return replace(fmt, name=f"{fmt.name}-tile", tiled=True)


_EIGHT_BITS = (
    Format("e4m3", torch.float8_e4m3fn, 4, 2.0**-6),
    Format("e5m2", torch.float8_e5m2, 3, 2.0**-14),
)

MAILBOX_FORMATS = {
    f.name: f
    for f in (
        *(FORMATS[name] for name in ("fp32", "bf16", "fp16")),
        tiled(FORMATS["fp16"]),
        *_EIGHT_BITS,
        *(tiled(fmt) for fmt in _EIGHT_BITS),
    )
}
"""What a tensor may be stored in on its way from one core to another, widest first. No kernel
returns eight bits."""


def format_of(dtype: torch.dtype) -> Format:
    """The format a torch dtype stores; TypeError for any but the four floating types."""
    for candidate in FORMATS.values():
        if candidate.dtype is dtype and candidate.name != "tf32":
            return candidate
    raise TypeError(
        f"dtype {dtype} is not judged; wanted one of float64, float32, bfloat16, float16"
    )
