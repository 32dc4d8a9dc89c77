"""Score: the suites run again, on the outputs that came back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET
from kdaverify.adapters.exchange.answer import answer
from kdaverify.adapters.exchange.declared import Declared, DeclaredCall
from kdaverify.adapters.exchange.manifest import (
    INPUTS,
    NAME,
    OUTPUTS,
    ExchangeError,
    ExportedCall,
    ExportedCase,
    Manifest,
)
from kdaverify.adapters.isolation.fault import CallFailure


class Playback(Declared):
    """Answers every call of an export with the outputs in the folder.

    Args:
        folder: where they are.
        manifest: what was exported.
    """

    open_ended = False

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(manifest.declaration)
        self._folder, self._manifest = folder, manifest
        self._cases = {case.tested: case for case in manifest.cases}
        self._case: ExportedCase | None = None
        self._played: list[tuple[ExportedCall, dict[str, str]]] = []

    def begin(self, case: str) -> None:
        """Finds the case among those exported.

        Raises:
            ExchangeError: it is none of them.
        """
        self._case, self._played = self._cases.get(case), []
        if self._case is None:
            wanted = f"--profile {self._manifest.profile} --kda-seed {self._manifest.seed}"
            raise ExchangeError(
                f"{NAME}: holds no case {case}; `kdaverify score` needs an export made with"
                f" {wanted}"
            )

    def carry(self, call: DeclaredCall) -> tuple[Any, ...]:
        exported = self._next(call)
        try:
            found = answer(self._folder, exported, self._manifest.returned)
        except CallFailure as fault:
            raise CallFailure(fault.kind, f"{OUTPUTS}/{exported.file}: {fault.message}") from None
        self._played.append((exported, found.about))
        return tuple(map(found.outputs.get, self._manifest.returned))

    def proof(self) -> str:
        if not self._played:
            return NOTHING_YET
        files = ", ".join(f"{OUTPUTS}/{call.file}" for call, _ in self._played)
        return f"{_each(self._played, 'function')}, {files}"

    def environment(self) -> dict[str, str]:
        names = {name: None for _, about in self._played for name in about if name != "function"}
        return {
            "device": "",
            **{name: _each(self._played, name) for name in names},
            "mode": "offline",
        }

    def _next(self, call: DeclaredCall) -> ExportedCall:
        """The exported call that this one is, in every bit.

        Raises:
            ExchangeError: the harness calls something else than it exported.
        """
        assert self._case is not None
        number = len(self._played)
        if number == len(self._case.calls):
            raise ExchangeError(
                f"{NAME}: holds {number} calls of the case {self._case.tested}, and more are made;"
                " export again"
            )
        exported = self._case.calls[number]
        path = self._folder / INPUTS / exported.file
        kept = load_file(path)
        tensors = {name: x for name, x in call.tensors.items() if name not in exported.links}
        same = kept.keys() == tensors.keys() and all(
            _same(kept[name], tensors[name]) for name in kept
        )
        if not same or (exported.entry, exported.values) != (call.entry, call.values):
            raise ExchangeError(
                f"{path}: holds no call of this version of the suites; score with the versions that"
                " exported, or export again"
            )
        return exported


def _same(a: Tensor, b: Tensor) -> bool:
    """To the bit: poison is NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))


def _bytes(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def _each(played: list[tuple[ExportedCall, dict[str, str]]], name: str) -> str:
    """What the runner said of `name`, once where it is the same for all calls."""
    return " and ".join(dict.fromkeys(about.get(name, "unknown") for _, about in played))
