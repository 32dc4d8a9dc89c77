"""Operators that are one pipeline of sums and products: a short way to bring one along.

The algebra is written once for an `Arithmetic`, forward and backward; exact values, reference
ensemble, tolerances and words follow.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import ExactValues, StorageContract, sampled_reference
from kdaverify.budgets.standard import Reference
from kdaverify.checks.place import ElementPlace
from kdaverify.operator import CallOperator
from kdaverify.operators.cotangents import normal_cotangents
from kdaverify.operators.sizes import WIDTHS, below
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.enclosure import Enclosure
from oracles.signature import TensorCall

UNIT = 2.0**-53
"""Unit roundoff of float64, in which exact values are computed."""
Named = Mapping[str, Tensor]


class PipelineOperator(CallOperator):
    """An operator that is sums and products of its inputs."""

    resampled = True

    @abc.abstractmethod
    def forward(self, call: Any, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """The outputs by name; what a kernel stores goes through `arithmetic.store`,
        products of matrices through `arithmetic.dot`.
        """

    @abc.abstractmethod
    def backward(self, call: Any, cotangents: Named, arithmetic: Arithmetic) -> dict[str, Tensor]:
        """The gradients of the inputs that are given, by name."""

    @abc.abstractmethod
    def roundings(self, call: Any) -> int:
        """Roundings on the longest way from an input to a result, or to a gradient."""

    def reference(
        self, call: TensorCall, contract: StorageContract, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        del cuts
        return self._reference(call, None, contract, io)

    def gradient_reference(
        self, call: TensorCall, cotangents: Named, contract: StorageContract, io: Format
    ) -> Reference:
        return self._reference(call, cotangents, contract, io)

    def _reference(
        self, call: TensorCall, cotangents: Named | None, contract: StorageContract, io: Format
    ) -> Reference:
        narrow, loss = (
            call.mapped(lambda x: x.to(contract.accumulate.dtype)),
            _cast(cotangents, contract.accumulate.dtype),
        )
        truth = self._exact(call.mapped(torch.Tensor.double), _cast(cotangents, torch.float64))
        formats = dict.fromkeys(truth.enclosures, io)
        return sampled_reference(
            truth, lambda arithmetic: self._run(narrow, loss, arithmetic), contract, formats
        )

    def _exact(self, call: TensorCall, cotangents: Named | None) -> ExactValues:
        """Math: |computed - exact| <= n u (the same sum of the moduli of its terms), n the
        roundings of a term.

        Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1.
        """
        values = self._run(call, cotangents, NATIVE)
        moduli = None if cotangents is None else {name: dy.abs() for name, dy in cotangents.items()}
        numbers = {name: abs(number) for name, number in call.numbers().items()}
        sizes = self._run(replace(call.mapped(torch.abs), **numbers), moduli, NATIVE)  # pyright: ignore[reportArgumentType]
        # One more each for the sum of moduli itself and for a division that rounds.
        share = (self.roundings(call) + 2) * UNIT
        return ExactValues(
            {
                name: Enclosure(x, torch.zeros_like(x), share * sizes[name], sizes[name] == 0)
                for name, x in values.items()
            },
            "float64 sums",
        )

    def _run(
        self, call: TensorCall, cotangents: Named | None, arithmetic: Arithmetic
    ) -> dict[str, Tensor]:
        return (
            self.forward(call, arithmetic)
            if cotangents is None
            else self.backward(call, cotangents, arithmetic)
        )

    def output_format(self, output: str, contract: StorageContract, io: Format) -> Format:
        del output, contract
        return io

    def loss(
        self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int
    ) -> dict[str, Tensor]:
        del of
        return normal_cotangents(self, problem, problem.inputs(), exposed, exponent)

    def place(self, output: str, index: tuple[int, ...], call: TensorCall) -> ElementPlace:
        """Math letters for words, and the numbers of the call."""
        where = ", ".join(
            f"{axis} {at}" for axis, at in zip(self.signature[output].axes, index, strict=True)
        )
        return ElementPlace(
            index,
            where,
            ", ".join(f"{name} {number:g}" for name, number in call.numbers().items())
            or "no numbers",
        )

    def refusal(self, adapter: Adapter, problem: Any) -> str | None:
        return adapter.supports(problem)

    def smaller(
        self, problem: Any, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        axes = dict.fromkeys(axis for tensor in self.signature.inputs for axis in tensor.axes)
        for axis in axes:
            yield from (({axis: size}, detail) for size in below(getattr(problem, axis), WIDTHS))


def _cast(cotangents: Named | None, dtype: torch.dtype) -> dict[str, Tensor] | None:
    return None if cotangents is None else {name: dy.to(dtype) for name, dy in cotangents.items()}
