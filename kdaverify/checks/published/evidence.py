"""What a check leaves for others' standards: the output, the exact one, a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import format_of
from kdaverify.checks.published.sample import Sample

EMULATED: Final = "the baseline reference kernel"


@dataclass(frozen=True)
class Benchmark:
    """The run that others' standards hold a kernel's error against; ours never do.

    Args:
        name: whose it is, or why there is none.
        outputs: what it returned, by name.
    """

    name: str
    outputs: Mapping[str, Tensor]


Again = Callable[[Adapter], Mapping[str, Tensor]]
"""Makes the calls of a check with another implementation; returns its outputs by name, or raises as
the check would."""


@dataclass(frozen=True)
class Evidence:
    """One compared output.

    Args:
        output: "o", "final_state" or a gradient.
        dtype: format of the problem.
        packed: whether the call packs sequences.
        actual: what the kernel returned, as it returned it.
        exact: float64.
        plain: what the baseline reference kernel makes of it; None where that is not known.
        again: calls another implementation.
    """

    output: str
    dtype: str
    packed: bool
    actual: Tensor
    exact: Tensor
    plain: Tensor | None
    again: Again

    def sample(self, benchmark: Benchmark) -> Sample:
        """The output beside that of `benchmark`, which may not have it."""
        other = benchmark.outputs.get(self.output)
        return Sample(
            output=self.output,
            dtype=self.dtype,
            stored=format_of(self.actual.dtype).name,
            packed=self.packed,
            actual=self._wide(self.actual),
            exact=self.exact,
            benchmark=None if other is None else self._wide(other),
        )

    def _wide(self, tensor: Tensor) -> Tensor:
        # In one order, however a kernel lays its outputs out: sums then agree in every bit.
        return tensor.detach().to(self.exact.device).double().contiguous()


def emulated(evidence: Evidence) -> Benchmark:
    """What the baseline reference kernel makes of an output."""
    plain = evidence.plain
    return Benchmark(EMULATED, {} if plain is None else {evidence.output: plain})
