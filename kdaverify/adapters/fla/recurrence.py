"""What adapters of flash-linear-attention share: where kernels run, how calls reach them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal

import torch

from kdaverify.adapters.base import Output, WatchedAdapter, versions
from kdaverify.adapters.fla.runtime import SURROUNDINGS, Backend, missing, native
from kdaverify.adapters.placement import on_device
from kdaverify.adapters.stages import StageArguments, StageCall
from oracles.inputs import Inputs
from oracles.stages import Named

Form = Literal["chunk", "recurrent"]
INSTALL: Final = "pip install 'kdaverify[fla]' (for Ascend: torch_npu and triton-ascend too)"


class FlaRecurrence(WatchedAdapter):
    """A recurrence of the package: native on its backend's device, interpreted elsewhere.

    Args:
        backend: cuda or npu: whose kernels.
        form: chunk or recurrent. Decoding is recurrent for both, as in the models' layers.
    """

    isolated = True

    def __init__(self, backend: Backend, form: Form) -> None:
        self._backend: Backend = backend
        self._form: Form = form

    @abc.abstractmethod
    def _run(self, inputs: Inputs, form: Form) -> Output:
        """One call of the function of a form, on the device; leaves in `_ran` what ran."""

    @cached_property
    def _native(self) -> bool:
        return native(self._backend)

    @property
    # known only where it runs
    def device(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._backend if self._native else "cpu"

    @property
    # likewise
    def compiled(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._native

    @property
    # likewise
    def widths(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        # Native kernels are compiled for every width, seconds each: the panel tests odd ones,
        # random problems those of models.
        return (64, 128) if self._native else ()

    def missing(self) -> str | None:
        return missing(self._backend, INSTALL)

    def surroundings(self) -> Mapping[str, str]:
        return SURROUNDINGS[self._backend]

    def forward(self, inputs: Inputs) -> Output:
        return on_device(self.device, lambda there: self._run(there, self._form), inputs)

    def step(self, inputs: Inputs) -> Output:
        return on_device(self.device, lambda there: self._run(there, "recurrent"), inputs)

    def _placed(self, stage: StageCall, run: Callable[[StageArguments], Named]) -> StageCall:
        """The stage, computed by `run` on the device."""

        def call(x: StageArguments) -> Named:
            tensors = {name: tensor.to(self.device) for name, tensor in x.tensors.items()}
            written = run(replace(x, inputs=x.inputs.on(self.device), tensors=tensors))
            return {name: tensor.to(x.inputs.q.device) for name, tensor in written.items()}

        return replace(stage, call=call)

    def environment(self) -> dict[str, str]:
        about = {
            **super().environment(),
            **versions("fla-core", "triton"),
            "mode": "native" if self._native else "interpreted",
        }
        return {**about, "device": torch.cuda.get_device_name()} if self.device == "cuda" else about
