"""A kernel of a pipeline operator: its pipeline in torch, with a stage replaced a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.budgets.sampled import StorageContract
from kdaverify.operators.pipeline import PassInputs, PipelineOperator
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.signature import TensorCall

Change = Callable[[Any, Tensor], Tensor]
"""(call, what a stage stores) -> what it stores instead."""
NO_CHANGE: Final[Mapping[str, Change]] = MappingProxyType({})


class PipelineKernel(Adapter):
    """Computes in fp32 and returns the format of its inputs.

    Args:
        operator: whose pipeline it runs.
        name: by which people call it.
        dtypes: of its inputs.
        changes: what stages store instead, by stage; none for a conforming kernel.
    """

    def __init__(
        self,
        operator: PipelineOperator,
        name: str,
        dtypes: tuple[str, ...],
        changes: Mapping[str, Change] = NO_CHANGE,
    ) -> None:
        self.op, self.name, self.dtypes = operator.name, name, dtypes
        self._pipeline, self._changes, self._ran = operator, changes, NOTHING_YET

    def contract(self, dtype: str) -> Any:
        signature, io = self._pipeline.signature, FORMATS[dtype]
        returned = dict.fromkeys((*signature.returned, *signature.gradients), io)
        return StorageContract(f"{self.op}-{dtype}", io, FORMATS["fp32"], returned)

    def supports(self, problem: Any) -> str | None:
        del problem
        return None

    def received(self, inputs: TensorCall) -> TensorCall:
        return inputs

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        return self._run(PassInputs(inputs))

    def gradients(self, inputs: Any, cotangents: Any) -> dict[str, Tensor]:
        return self._run(PassInputs(inputs, cotangents))

    def stage(self, name: str, x: PassInputs) -> Tensor:
        single = x.mapped(Tensor.float)
        found = self._pipeline.stages(single, self._arithmetic(single))
        return self._stored(x, name, found[name])

    def proof(self) -> str:
        return self._ran

    def _run(self, x: PassInputs) -> dict[str, Tensor]:
        self._ran, single = self.name, x.mapped(Tensor.float)
        found = self._pipeline.run(single, self._arithmetic(single))
        return {name: self._stored(x, name, y) for name, y in found.items()}

    def _arithmetic(self, x: PassInputs) -> Arithmetic:
        def store(name: str, tensor: Tensor) -> Tensor:
            change = self._changes.get(name)
            return tensor if change is None else change(x.call, tensor)

        return replace(NATIVE, store=store)

    def _stored(self, x: PassInputs, name: str, tensor: Tensor) -> Tensor:
        dtype = format_of(next(iter(x.call.tensors().values())).dtype).name
        return tensor.to(self.contract(dtype).storage(name).dtype)
