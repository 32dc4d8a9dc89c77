"""Whether a tensor holds numbers only."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether every element is. A sum that is finite has finite terms, and takes a tenth of the
    time; that of finite terms may overflow.
    """
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
