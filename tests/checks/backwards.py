"""Kernels with a backward of their own: eager's forward, the backward stages of its contract, and a
place to plant faults in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS
from oracles.chunk_backward import BACKWARD, BackwardStages, chunk_backward
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

Change = Callable[[Gradients[Tensor]], Gradients[Tensor]]


def unchanged(x: Any) -> Any:
    return x


class Staged(Eager):
    """The embedded kernel with the backward of its contract, or with something wrong on the way.

    Args:
        backward: the stages of the backward.
        change: made to the gradients.
        given: made to the cotangents.
        forward: made to the inputs of the forward.
    """

    def __init__(
        self,
        backward: BackwardStages = BACKWARD,
        change: Change = unchanged,
        *,
        given: Callable[[Cotangents], Cotangents] = unchanged,
        dtype: str = "bf16",
    ) -> None:
        super().__init__("staged", {dtype: f"chunk64-{dtype}"})
        self._backward, self._change, self._given = backward, change, given

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        (dtype,) = self.dtypes
        arithmetic = Emulator("staged", self.contract(dtype), FORMATS[dtype]).arithmetic
        wrong = self._given(cotangents)
        found = self._change(
            chunk_backward(
                inputs, wrong, dtype=torch.float32, arithmetic=arithmetic, backward=self._backward
            )
        )
        given = {name: getattr(inputs, source) for name, source in GRADIENTS.items()}
        return Gradients(
            **{
                name: x if given[name] is None else x.to(given[name].dtype)
                for name, x in found.named().items()
            }
        )


class Changed(Eager):
    """The embedded kernel with its inputs, or its outputs, changed; its backward is autograd's."""

    def __init__(
        self,
        change: Callable[[Output], Output] = unchanged,
        *,
        inputs: Callable[[Inputs], Inputs] = unchanged,
        dtype: str = "fp32",
    ) -> None:
        super().__init__("changed", {dtype: f"chunk64-{dtype}"})
        self._change, self._inputs = change, inputs

    def forward(self, inputs: Inputs) -> Output:
        return self._change(super().forward(self._inputs(inputs)))


def detached(output: Output) -> Output:
    return Output(output.o.detach(), output.final_state.detach())
