"""The element types a problem can request."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch

Dtype: TypeAlias = Literal["fp64", "fp32", "bf16", "fp16"]

Gates: TypeAlias = Literal["channel", "head", "none"]
"""Log decays of a token and value head: one for each key channel (KDA), one for all (Gated
DeltaNet), or none (DeltaNet)."""

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

TORCH: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def state_dtype(dtype: str) -> torch.dtype:
    """The type of gates and states beside inputs of `dtype`: float64 or float32."""
    return torch.float64 if dtype == "fp64" else torch.float32
