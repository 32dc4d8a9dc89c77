"""What a kernel answered: tensors, or the status of a call that gave none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.checks.execute import CallError
from kdaverify.checks.status import Status
from oracles.autograd import ForwardOnlyError

NEAR: Final = 2.0**-5
"""Of the largest element: eight roundings of bf16."""


@dataclass(frozen=True)
class KernelErrors:
    """One kernel's answer.

    Args:
        outputs: float64, by name; empty where the call failed.
        failed: how it failed; None where it did not.
    """

    outputs: dict[str, Tensor]
    failed: Status | None = None

    def same(self, other: KernelErrors) -> bool:
        """Whether both are the same to the bit, NaN for NaN."""
        pairs = ((tensor, other.outputs.get(name)) for name, tensor in self.outputs.items())
        equal = all(
            b is not None
            and a.shape == b.shape
            and torch.equal(a.nan_to_num(0.5), b.nan_to_num(0.5))
            for a, b in pairs
        )
        return equal and self.failed is other.failed

    def near(self, other: KernelErrors) -> bool:
        """Whether both differ only by 16-bit roundings in a few places: that is no race."""
        if self.failed is not other.failed or {*self.outputs} != {*other.outputs}:
            return False
        return all(_near(a, other.outputs[name]) for name, a in self.outputs.items())


def _near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not torch.equal(a.isfinite(), b.isfinite()):
        return False
    a, b = a.nan_to_num(0.5), b.nan_to_num(0.5)
    return not a.numel() or bool((a - b).abs().max() <= NEAR * a.abs().max())


def answered(adapter: Adapter, case: str, call: Callable[[], Mapping[str, Tensor]]) -> KernelErrors:
    """The result of `call`; a call that the kernel's interface cannot take is skipped.

    Args:
        case: announced to the kernel before the call.
    """
    adapter.begin(case)
    try:
        found = call()
    except CallError as fault:
        return KernelErrors({}, fault.status)
    except (AdapterError, ForwardOnlyError):
        return KernelErrors({}, Status.SKIP)
    return KernelErrors(
        {name: tensor.detach().double().cpu().contiguous() for name, tensor in found.items()}
    )
