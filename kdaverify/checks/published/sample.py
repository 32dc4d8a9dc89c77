"""One output as others' standards see it: the kernel's, the exact one, and that of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Errors:
    """What one run misses the exact values by, in float64."""

    found: Tensor
    exact: Tensor

    @cached_property
    def signed(self) -> Tensor:
        return self.found - self.exact

    @cached_property
    def absolute(self) -> Tensor:
        return self.signed.abs()

    @cached_property
    def largest(self) -> float:
        return float(self.absolute.max())

    @cached_property
    def rms(self) -> float:
        return float(self.signed.square().mean().sqrt())

    @cached_property
    def finite(self) -> bool:
        """Whether the run is."""
        return bool(torch.isfinite(self.found).all())


@dataclass(frozen=True)
class Sample:
    """One output of one run.

    Args:
        output: "o", "final_state" or a gradient.
        dtype: format of the problem's q, k and v: fp64, fp32, bf16 or fp16.
        stored: format of the output itself.
        packed: whether the call packs sequences.
        actual, exact: float64, of one shape; every exact value is finite.
        benchmark: the same output of a run of the same precision, float64; None where there is none.
    """

    output: str
    dtype: str
    stored: str
    packed: bool
    actual: Tensor
    exact: Tensor
    benchmark: Tensor | None = None

    @property
    def forward(self) -> bool:
        """Whether it is an output of the forward pass."""
        return self.output in ("o", "final_state")

    @cached_property
    def size(self) -> Tensor:
        """|exact|."""
        return self.exact.abs()

    @cached_property
    def errors(self) -> Errors:
        """Of the kernel."""
        return Errors(self.actual, self.exact)

    @cached_property
    def of_benchmark(self) -> Errors:
        """Of the benchmark.

        Raises:
            ValueError: there is none.
        """
        if self.benchmark is None:
            raise ValueError(f"sample: no benchmark for {self.output}; ask `Rule.says`, which looks first")
        return Errors(self.benchmark, self.exact)
