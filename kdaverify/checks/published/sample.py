"""One output as others' standards see it: the kernel's, the exact one, and that of a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

X = TypeVar("X")
# Added to |exact| in relative errors: as Ascend's standards have it, in all of them.
TINY: Final = 1e-7


@dataclass(frozen=True)
class Errors:
    """The error of one run, in float64.

    Args:
        found, exact, size: the run's values, the exact ones and their absolute values.
    """

    found: Tensor
    exact: Tensor
    size: Tensor

    @cached_property
    def signed(self) -> Tensor:
        return self.found - self.exact

    @cached_property
    def absolute(self) -> Tensor:
        return self.signed.abs()

    @cached_property
    def relative(self) -> Tensor:
        """|found - exact| / (|exact| + 1e-7)."""
        return self.absolute / (self.size + TINY)

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
        benchmark: the same output of a run of the same precision, float64, or None.
    """

    output: str
    dtype: str
    stored: str
    packed: bool
    actual: Tensor
    exact: Tensor
    benchmark: Tensor | None = None
    _known: dict[Callable[..., Any], Any] = field(
        default_factory=dict[Callable[..., Any], Any], repr=False, compare=False
    )

    def once(self, figure: Callable[[Sample], X]) -> X:
        """`figure` of this sample, worked out at the first call: rules share figures."""
        if figure not in self._known:
            self._known[figure] = figure(self)
        return self._known[figure]

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
        return Errors(self.actual, self.exact, self.size)

    @cached_property
    def of_benchmark(self) -> Errors:
        """Of the benchmark.

        Raises:
            ValueError: there is none.
        """
        if self.benchmark is None:
            raise ValueError(
                f"sample: no benchmark for {self.output}; call `Rule.says`, which looks first"
            )
        return Errors(self.benchmark, self.exact, self.size)
