"""Export: the suites run, and every call is written to a file instead of being answered."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from safetensors.torch import save
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.exchange.declared import Declared, DeclaredCall
from kdaverify.adapters.exchange.manifest import (
    INPUTS,
    OUTPUTS,
    ExchangeError,
    ExportedCall,
    ExportedCase,
    Manifest,
    Outline,
)
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.execute import dtype_name

# Outputs handed out here are constants that no regime draws and every format holds, distinguished
# by the number of their call and their own.
_MARK: Final = -(2.0**-9)
_MARKS: Final = 128


RUNNER = Path(__file__).parent / "standalone" / "run.py"


class _WrittenDown(Exception):
    """Ends a call: nobody has its outputs yet."""


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
        self._given: list[dict[str, Tensor]] = []

    def begin(self, case: str) -> None:
        # A test may come twice: the conventions are tested before anything else, and as a suite.
        self._calls, self._given = [], []
        self._cases[case] = self._calls
        self._number = self._numbers.setdefault(case, len(self._cases))

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        with suppress(_WrittenDown):
            super().forward(inputs)
        return self._given[-1]

    def step(self, inputs: Any) -> dict[str, Tensor]:
        with suppress(_WrittenDown):
            super().step(inputs)
        return self._given[-1]

    def carry(self, call: DeclaredCall) -> NoReturn:
        links = self._links(call)
        file, found = f"{self._number:05d}-{len(self._calls)}.safetensors", self._stand_ins(call)
        tensors = {name: x for name, x in call.tensors.items() if name not in links}
        self._calls.append(
            ExportedCall(
                file=file,
                entry=call.entry,
                values=call.values,
                links=links,
                sha256=self._write(file, tensors),
                outputs=self._outlines(call, found),
            )
        )
        self._given.append(found)
        raise _WrittenDown

    def proof(self) -> str:
        return f"{NOTHING_YET}: calls are written down"

    def finish(self) -> Manifest:
        """Completes the manifest and writes it."""
        manifest = self._draft.sealed(
            tuple(
                ExportedCase(tested=tested, calls=tuple(calls))
                for tested, calls in self._cases.items()
            )
        )
        manifest.write(self._folder)
        return manifest

    def _stand_ins(self, call: DeclaredCall) -> dict[str, Tensor]:
        x, dtype = call.inputs, dtype_name(call.inputs)
        contract, names = self.contract(dtype), self._draft.returned
        first = len(self._given) * len(names)

        def stand_in(name: str, number: int) -> Tensor:
            kind = self.operator.output_format(name, contract, FORMATS[dtype]).dtype
            return torch.full(x.signature.shape(name, x), _MARK * (1 + number % _MARKS), dtype=kind)

        return {name: stand_in(name, first + number) for number, name in enumerate(names)}

    def _links(self, call: DeclaredCall) -> dict[str, tuple[str, str]]:
        """The inputs that are outputs of earlier calls of this case, the latest first."""
        given = {name: x for name, x in call.inputs.tensors().items() if name in call.arguments}
        found = {name: self._source(x) for name, x in given.items()}
        return {name: source for name, source in found.items() if source is not None}

    def _source(self, tensor: Tensor) -> tuple[str, str] | None:
        """The call, by its file, and the output that a tensor is."""
        for call, outputs in zip(reversed(self._calls), reversed(self._given), strict=True):
            for name, known in outputs.items():
                if (
                    tensor.dtype == known.dtype
                    and tensor.numel()
                    and torch.equal(tensor.to("cpu"), known)
                ):
                    return call.file, name
        return None

    def _outlines(self, call: DeclaredCall, found: dict[str, Tensor]) -> dict[str, Outline]:
        """Only KDA has a way back from the canonical outputs to those of a kernel."""
        if not isinstance(self.declaration, Declaration):
            return {}
        names = ("o", "final_state") if self.declaration.final_state else ("o",)
        return {
            name: _outline(self.conventions.hand(name, found[name], call.inputs)) for name in names
        }

    def _write(self, file: str, tensors: dict[str, Tensor]) -> str:
        # A file holds no two names of one memory.
        kept = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        content, path = save(kept), self._folder / INPUTS / file
        try:
            path.write_bytes(content)
        except OSError as error:
            raise ExchangeError(f"{path}: {error}; make room and export again") from None
        return hashlib.sha256(content).hexdigest()


def _outline(tensor: Tensor) -> Outline:
    return Outline(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def prepare(folder: Path, draft: Manifest) -> None:
    """Makes the folder, with a manifest that has no cases yet.

    Raises:
        ExchangeError: there is something in the folder already, or it cannot be made.
        AdapterError: the declaration contradicts itself.
    """
    Recorder(folder, draft)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ExchangeError(f"{folder}: is not empty; name a new folder")
        for name in (INPUTS, OUTPUTS):
            (folder / name).mkdir()
        shutil.copyfile(RUNNER, folder / RUNNER.name)
        draft.write(folder)
    except OSError as error:
        raise ExchangeError(f"{folder}: {error}; name a folder that can be written") from None
