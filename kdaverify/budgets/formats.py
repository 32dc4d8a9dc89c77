"""Number formats: how many bits a stored tensor, an operand or an accumulator keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Args:
        name: fp64, fp32, tf32, bf16 or fp16.
        dtype: the torch type that holds it (TF32 lives in float32).
        precision: bits of the significand, the hidden one included; unit roundoff is 2^-precision.
        min_normal: smallest normal number.
    """

    name: str
    dtype: torch.dtype
    precision: int
    min_normal: float

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of rounding to nearest."""
        return 2.0**-self.precision

    def round(self, tensor: Tensor) -> Tensor:
        """`tensor` rounded to nearest into this format, returned in its own dtype; wider formats change nothing."""
        if self.name == "tf32":
            return _round_tf32(tensor)
        return tensor if torch.finfo(tensor.dtype).eps >= 2.0 * self.unit else tensor.to(self.dtype).to(tensor.dtype)

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
        return torch.where(away, (bits - 1).view(self.dtype).to(tensor.dtype), nearest)  # one less in sign and magnitude: towards zero


_TF32_DROPS = 13


def _round_tf32(tensor: Tensor) -> Tensor:
    # Ties away from zero: the rule of the hardware's fp32 -> TF32 conversion.
    bits = tensor.to(torch.float32).view(torch.int32)
    halfway_up = (bits + (1 << (_TF32_DROPS - 1))).view(torch.float32)
    return truncate_fp32(halfway_up, bits=_TF32_DROPS).to(tensor.dtype)


def truncate_fp32(tensor: Tensor, *, bits: int) -> Tensor:
    """`tensor` in fp32 with its lowest bits cut off."""
    return (tensor.to(torch.float32).view(torch.int32) & -(1 << bits)).view(torch.float32).to(tensor.dtype)


def truncate_tf32(tensor: Tensor) -> Tensor:
    """`tensor` as a matrix unit reads fp32 operands that nobody converted: it drops the 13 low bits."""
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


def format_of(dtype: torch.dtype) -> Format:
    """The format a torch dtype stores; TypeError for anything but the four floating types we judge."""
    for candidate in FORMATS.values():
        if candidate.dtype is dtype and candidate.name != "tf32":
            return candidate
    raise TypeError(f"dtype {dtype} is not judged; wanted one of float64, float32, bfloat16, float16")
