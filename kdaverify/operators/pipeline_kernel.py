"""Kernels of a pipeline operator: its pipeline in torch, a stage replaced, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import AdapterError, WatchedAdapter
from kdaverify.adapters.entry_point import Function, place_of, signature_of
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.budgets.sampled import StorageContract
from kdaverify.operators.pipeline import PassInputs, PipelineOperator
from oracles.arithmetic import NATIVE, Arithmetic
from oracles.signature import TensorCall

Change = Callable[[Any, Tensor], Tensor]
"""(call, what a stage stores) -> what it stores instead."""
NO_CHANGE: Final[Mapping[str, Change]] = MappingProxyType({})


class PipelineKernel(WatchedAdapter):
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
        self._pipeline, self._changes = operator, changes

    def contract(self, dtype: str) -> Any:
        signature, io = self._pipeline.signature, FORMATS[dtype]
        returned = dict.fromkeys((*signature.returned, *signature.gradients), io)
        return StorageContract(f"{self.op}-{dtype}", io, FORMATS["fp32"], returned)

    def supports(self, problem: Any) -> str | None:
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


class PipelineFunction(PipelineKernel):
    """A function of an operator's inputs and numbers that returns its outputs.

    Args:
        function: takes the inputs that its signature names by place, numbers by name.
        options: name and dtypes.
    Raises:
        AdapterError: there are other options.
    """

    differentiable = False

    def __init__(
        self, operator: PipelineOperator, function: Function, options: Mapping[str, Any]
    ) -> None:
        own = getattr(function, "__name__", type(function).__name__)
        if others := sorted(options.keys() - {"name", "dtypes"}):
            raise AdapterError(
                f"kernel {own!r}: op={operator.name!r} has no option {others[0]}; it has name,"
                " dtypes"
            )
        super().__init__(operator, options.get("name", own), options.get("dtypes", ("fp32",)))
        self._function, named = function, signature_of(function).parameters
        self._tokens, self._keywords = (
            tuple(name for name in names if name in named) for names in operator.parameters()
        )

    def forward(self, inputs: Any) -> dict[str, Any]:
        given = {**inputs.tensors(), **inputs.numbers()}
        returned = self._function(
            *(given.get(name) for name in self._tokens),
            **{name: given.get(name) for name in self._keywords},
        )
        self._ran = place_of(self._function)
        parts = returned if isinstance(returned, tuple | list) else (returned,)
        return dict(zip(self._pipeline.signature.returned, parts, strict=False))
