"""Tolerances of an operator that is a pipeline, run under every admitted arithmetic.

An operator writes its algebra once, for an `Arithmetic`: every tensor that a kernel stores goes
through `store`, every product of matrices through `dot`. The tolerance is then measured, not
modelled: reference kernels that round to nearest and sum in other orders, and stochastic-rounding
samples (Monte Carlo arithmetic, Parker 1997), on the very call that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget, allow, ensemble_errors
from kdaverify.budgets.constants import SAMPLES
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.finite import OutputRuns, finite_outputs
from kdaverify.budgets.formats import Format
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.stochastic_rounding import StochasticRounding
from kdaverify.budgets.sums import one_by_one, sequential
from oracles.arithmetic import Arithmetic
from oracles.enclosure import Enclosure

SEED: Final = 20
"""Of the first sample: a tolerance is the same in every run and on every machine."""
Described = tuple[str, str, str]
"""A key of a contract: its name, its value, and what it means; "" where the name says that."""
Run = Callable[[Arithmetic], Mapping[str, Tensor]]
"""The pipeline of a call: its outputs, or its gradients, by name."""


@dataclass(frozen=True)
class StorageContract:
    """The declared arithmetic of operators whose freedoms are formats and orders of sums.

    Args:
        name: as records have it.
        operands: what products take; what is wider is rounded to it first.
        accumulate: what their sums are kept in.
        tensors: the format of every stored tensor; unnamed ones stay in that of the sums.
    """

    name: str
    operands: Format
    accumulate: Format
    tensors: Mapping[str, Format] = field(default_factory=dict[str, Format])

    @property
    def of_gradients(self) -> Self:
        """What gradients are judged by: the same arithmetic."""
        return self

    def storage(self, name: str) -> Format:
        """The format that a tensor of the pipeline is stored in."""
        return self.tensors.get(name, self.accumulate)

    def described(self) -> tuple[Described, ...]:
        """Every key: by default the tensors that are not stored in the format of the sums."""
        return tuple((name, fmt.name, "") for name, fmt in self.tensors.items())

    def kernels(self) -> tuple[str, ...]:
        """The reference kernels that a contract's freedoms make, in words; none by default."""
        return ()

    def stored(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the pipeline as it comes back from where it is stored."""
        return self.storage(name).round(tensor)


@dataclass(frozen=True)
class ExactValues:
    """The exact outputs, or gradients, of a call, and how they were computed."""

    enclosures: Mapping[str, Enclosure]
    method: str

    def named(self) -> dict[str, Enclosure]:
        return dict(self.enclosures)


def reference_kernels(contract: StorageContract) -> dict[str, Arithmetic]:
    """Round-to-nearest kernels, one for each way to sum; the plainest first."""

    def summed(dot: Callable[[Tensor, Tensor], Tensor]) -> Arithmetic:
        def rounded(a: Tensor, b: Tensor) -> Tensor:
            work = contract.accumulate.dtype
            return dot(contract.operands.round(a).to(work), contract.operands.round(b).to(work))

        return Arithmetic(store=contract.stored, dot=rounded)

    ways = {"library order": torch.matmul, "in order": one_by_one, "in parts": sequential}
    return {name: summed(dot) for name, dot in ways.items()}


def sampled(contract: StorageContract, number: int) -> Arithmetic:
    """A kernel whose every rounding is stochastic; the same one for the same number."""
    rounding = StochasticRounding(torch.Generator().manual_seed(SEED + number))

    def store(name: str, tensor: Tensor) -> Tensor:
        return rounding.rounded(tensor.double(), contract.storage(name))

    def dot(a: Tensor, b: Tensor) -> Tensor:
        left, right = (rounding.rounded(x.double(), contract.operands) for x in (a, b))
        return rounding.dot(left, right, contract.accumulate)

    return Arithmetic(store=store, dot=dot)


@torch.inference_mode()
def sampled_reference(
    truth: ExactValues, run: Run, contract: StorageContract, formats: Mapping[str, Format]
) -> Reference:
    """Exact values and tolerances of one call.

    Args:
        truth: the exact values, accurate far beyond the tolerances.
        run: the call's pipeline.
        formats: what each of its results is returned in.
    Raises:
        ContractOverflow: every result overflows in some reference kernel.
    """
    rounded = [run(arithmetic) for arithmetic in reference_kernels(contract).values()]
    drawn = [run(sampled(contract, number)) for number in range(SAMPLES)]
    runs = {
        name: OutputRuns([x[name].double() for x in rounded], [x[name].double() for x in drawn])
        for name in formats
    }
    finite = finite_outputs(runs)
    if not finite:
        raise ContractOverflow(
            f"every output overflows in some emulated kernel of {contract.name}; choose milder"
            " values"
        )

    def tolerance(name: str) -> Budget:
        exact, fmt = truth.enclosures[name], formats[name]
        errors = ensemble_errors(exact, *runs[name], io=fmt, lost=0.0)
        return allow(exact, errors, io=fmt, unit=max(contract.operands.unit, fmt.unit), lost=0.0)

    return Reference(truth, {name: tolerance(name) for name in finite})
