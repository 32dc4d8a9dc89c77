"""Export: the suites run, and every call is written to a file instead of being answered."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET
from kdaverify.adapters.exchange.declared import Declared, DeclaredCall
from kdaverify.adapters.exchange.manifest import (
    INPUTS,
    ExchangeError,
    ExportedCall,
    ExportedCase,
    Manifest,
    Outline,
)
from kdaverify.budgets.formats import format_of

# Final states handed out here are constants that no regime draws and every format holds,
# distinguished by the number of their call.
_MARK: Final = -(2.0**-9)
_MARKS: Final = 128


class Recorder(Declared):
    """Takes down every call of every case and returns stand-ins for its outputs.

    Args:
        folder: where the files go.
        draft: what is exported; it gets its cases by `finish`.
    """

    answers = False
    open_ended = False

    def __init__(self, folder: Path, draft: Manifest) -> None:
        super().__init__(draft.declaration)
        self._folder, self._draft = folder, draft
        self._cases: dict[str, list[ExportedCall]] = {}
        self._numbers: dict[str, int] = {}
        self._calls: list[ExportedCall] = []
        self._number = 0
        self._states: list[Tensor] = []

    def begin(self, case: str) -> None:
        # A test may come twice: the conventions are tested before anything else, and as a suite.
        self._calls, self._states = [], []
        self._cases[case] = self._calls
        self._number = self._numbers.setdefault(case, len(self._cases))

    def carry(self, call: DeclaredCall) -> tuple[Tensor, Tensor]:
        outputs = self._stand_ins(call)
        number = len(self._calls)
        tensors = {
            name: value for name, value in call.arguments.items() if isinstance(value, Tensor)
        }
        source = self._source(tensors.get("initial_state"))
        if source is not None:
            del tensors["initial_state"]
        file = f"{self._number:05d}-{number}.safetensors"
        self._calls.append(
            ExportedCall(
                file=file,
                entry=call.entry,
                scale=call.arguments.get("scale"),
                state_from=source,
                sha256=self._write(file, tensors),
                outputs={
                    name: _outline(outputs[name])
                    for name in outputs
                    if name == "o" or self.declaration.final_state
                },
            )
        )
        self._states.append(outputs["final_state"])
        return outputs["o"], outputs["final_state"]

    def proof(self) -> str:
        return f"{NOTHING_YET}: calls are written down"

    def finish(self) -> Manifest:
        """Completes the manifest and writes it."""
        manifest = self._draft.sealed(
            tuple(
                ExportedCase(asked=asked, calls=tuple(calls))
                for asked, calls in self._cases.items()
            )
        )
        manifest.write(self._folder)
        return manifest

    def _stand_ins(self, call: DeclaredCall) -> dict[str, Tensor]:
        x, number = call.inputs, len(self._states)
        carry = self.contract(format_of(x.q.dtype).name).carry.dtype
        state = torch.full((x.N, x.HV, x.K, x.V), _MARK * (1 + number % _MARKS), dtype=carry)
        canonical = {"o": torch.zeros(x.v.shape, dtype=x.q.dtype), "final_state": state}
        return {name: self.conventions.hand(name, tensor, x) for name, tensor in canonical.items()}

    def _source(self, state: Tensor | None) -> str | None:
        """The call of this case whose final state `state` is."""
        for call, known in zip(reversed(self._calls), reversed(self._states), strict=True):
            if (
                state is not None
                and state.dtype == known.dtype
                and state.numel()
                and torch.equal(state, known)
            ):
                return call.file
        return None

    def _write(self, file: str, tensors: dict[str, Tensor]) -> str:
        content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        path = self._folder / INPUTS / file
        try:
            path.write_bytes(content)
        except OSError as error:
            raise ExchangeError(f"{path}: {error}; make room and export again") from None
        return hashlib.sha256(content).hexdigest()


def _outline(tensor: Tensor) -> Outline:
    return Outline(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
