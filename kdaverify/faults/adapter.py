"""A fault of a delta rule as an implementation: `--impl fault:H1`, `fault:H1@0.25`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter, Output, WatchedAdapter
from kdaverify.adapters.eager import EAGER, Eager
from kdaverify.adapters.stages import StageCall, torch_backward_stages, torch_stages
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.operators.pointwise.call import ActivationCall, torch_activations
from kdaverify.problems import DTYPES, Problem
from oracles.arithmetic import Arithmetic
from oracles.backward_stages import run_backward_stages
from oracles.chunk_backward import BACKWARD
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.stages import Named, run_stages

GDN: Final = Eager("eager-gdn", dict.fromkeys(DTYPES[1:], "gdn64"), "head")
DELTA: Final = Eager("eager-delta", dict.fromkeys(DTYPES[1:], "gdn64"), "none")
EMBEDDED: Final[Mapping[str, Eager]] = MappingProxyType({"kda": EAGER, "gdn": GDN, "delta": DELTA})
"""The right kernels, by the operator that a fault is of."""


class Faulty(WatchedAdapter):
    """An embedded kernel with one fault in it; it declares what that kernel declares by default."""

    def __init__(
        self,
        fault: Fault,
        strength: float = 1.0,
        *,
        patch: Patch | None = None,
        contract: Callable[[str], Contract] | None = None,
    ) -> None:
        self.name = f"fault:{fault.id}" if strength == 1.0 else f"fault:{fault.id}@{strength:g}"
        self.dtypes = fault.dtypes
        self.fault, self.strength = fault, strength
        self._random = torch.Generator()
        self.begin("")
        self._patch = patch or fault.patch(Setting(strength, self._random))
        self._right = EMBEDDED[fault.operator]
        self.conventions, self.domain = self._right.conventions, self._right.domain
        self._contract = contract or self._right.contract

    def begin(self, case: str) -> None:
        # A random fault strikes at the same calls of a case wherever that case is tested.
        self._random.manual_seed(
            int.from_bytes(hashlib.sha256(f"{self.name} {case}".encode()).digest()[:7])
        )
        self._ran = NOTHING_YET

    def contract(self, dtype: str) -> Contract:
        return self._contract(dtype)

    def forward(self, inputs: Inputs) -> Output:
        return self._returned(self._patch.forward(self._kernel(inputs), inputs))

    def step(self, inputs: Inputs) -> Output:
        return self._returned(
            (self._patch.step or self._patch.forward)(self._kernel(inputs), inputs)
        )

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        derive = self._kernel(inputs).gradients
        wrapped = self._patch.gradients
        return (
            derive(inputs, cotangents) if wrapped is None else wrapped(derive, inputs, cotangents)
        )

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        return self._patch.exposes

    def variants(self) -> Mapping[str, Adapter]:
        return self._variants

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        contract, io = self.contract(dtype), FORMATS[dtype]
        if not self._right.stages(dtype):
            return {}
        kernel = PatchedPipeline(contract, self._patch)
        return {
            **torch_stages(contract, io, partial(self._run_stages, kernel)),
            **torch_backward_stages(contract, io, partial(self._run_backward_stages, kernel)),
        }

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        return {**torch_activations(), **self._patch.activations}

    @cached_property
    def _variants(self) -> Mapping[str, Adapter]:
        return {
            name: Faulty(self.fault, self.strength, patch=patch, contract=self._contract)
            for name, patch in self._patch.variants.items()
        }

    def _kernel(self, inputs: Inputs) -> PatchedPipeline:
        return PatchedPipeline(self.contract(format_of(inputs.q.dtype).name), self._patch)

    def _returned(self, outputs: Outputs) -> Output:
        self._ran = f"the embedded kernel with the fault {self.fault.id}"
        o, final_state = outputs
        return Output(o, final_state if "final_state" in self._patch.exposes else None)

    def _run_stages(
        self,
        kernel: PatchedPipeline,
        inputs: Inputs,
        given: Named,
        *,
        arithmetic: Arithmetic,
        **how: Any,
    ) -> dict[str, Tensor]:
        return run_stages(
            inputs,
            given,
            arithmetic=kernel.changed(arithmetic),
            stages=kernel.stages(inputs),
            **how,
        )

    def _run_backward_stages(
        self,
        kernel: PatchedPipeline,
        inputs: Inputs,
        given: Named,
        *,
        arithmetic: Arithmetic,
        **how: Any,
    ) -> dict[str, Tensor]:
        stages = BACKWARD if self._patch.backward is None else self._patch.backward(inputs)
        return run_backward_stages(
            inputs, given, arithmetic=kernel.changed(arithmetic), stages=stages, **how
        )


def unpatched(fault: Fault) -> Faulty:
    """A fault's adapter with its patch off: the embedded kernel with the fault's options."""
    options = fault.patch(Setting(1.0, torch.Generator())).variants
    return Faulty(
        fault,
        patch=Patch(
            variants={
                name: Patch(chunk_size=p.chunk_size, exposes=p.exposes)
                for name, p in options.items()
            }
        ),
    )
