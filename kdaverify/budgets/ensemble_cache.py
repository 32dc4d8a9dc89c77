"""Errors of ensembles, cached on disk: an ensemble costs seconds, a look-up a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, get_type_hints

import torch
from torch import Tensor

from kdaverify.budgets.budget import EnsembleErrors, Runs
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.statistics import ErrorStatistics
from oracles.cache import AnswerCache, answer_key, cache_in, digest_of_sources
from oracles.file_cache import default_folder, packed, unpacked
from oracles.inputs import Inputs

Errors = dict[str, EnsembleErrors]
STATISTICS = tuple(field.name for field in fields(ErrorStatistics))
PARTS: Final[Mapping[str, Any]] = get_type_hints(EnsembleErrors)
"""The types of all fields, by name. A list kept by hand lacked `apart`: a limit that was right when
first made was a fifth of that when read (bias 0.402 times the limit, then 2.2 times)."""
NAMES: Final[Mapping[Any, tuple[str, ...]]] = {ErrorStatistics: STATISTICS, Runs: Runs._fields}
"""Of parts that are several arrays."""


@dataclass(frozen=True)
class EnsembleCache:
    """Where the errors of one ensemble on one problem are kept.

    They are found again for the same bits of every input under the same contract, judged by the
    same kind of oracle, with the same source of oracles and tolerances; whatever is damaged is
    computed again.

    Args:
        inputs: the call; others: tensors besides its own that decide the ensemble's outputs.
        contract, io: the arithmetic declared.
        cuts: tokens at which the run is cut and resumed.
        cache: by default that of certified answers.
    """

    inputs: Inputs
    contract: Contract
    io: Format
    cuts: tuple[int, ...] = ()
    others: tuple[Tensor | None, ...] = ()
    cache: AnswerCache | None = None

    def of(self, method: str, compute: Callable[[], Errors]) -> Errors:
        """The kept errors where there are some, otherwise the computed ones, which are then kept.

        Args:
            method: how the exact values were obtained that the errors are relative to.
            compute: gives the errors of every output; runs the reference ensemble.
        """
        cache = self.cache if self.cache is not None else cache_in(default_folder())
        device = self.inputs.q.device
        options = {
            "family": repr((self.contract, self.io)),
            "cuts": self.cuts,
            "method": method,
            "device": device.type,
            "source": source(),
        }
        key = answer_key(self.inputs, options, self.others)
        payload = cache.read(key)
        if payload is not None:
            return _unpack(payload, device)
        errors = compute()
        cache.write(key, _pack(errors))
        return errors


@lru_cache(maxsize=1)
def source() -> str:
    """A digest of the source of this package and the release of torch."""
    return digest_of_sources(Path(__file__).parent, torch.__version__)


def _pack(errors: Mapping[str, EnsembleErrors]) -> bytes:
    arrays = {
        f"{output}.{name}": torch.as_tensor(value, dtype=torch.float64).cpu().numpy()
        for output, found in errors.items()
        for name, value in _values(found)
    }
    return packed(arrays)


def _values(found: EnsembleErrors) -> Iterator[tuple[str, Any]]:
    for part, kind in PARTS.items():
        value = getattr(found, part)
        if kind is Tensor:
            yield part, value
        else:
            yield from ((f"{part}.{name}", getattr(value, name)) for name in NAMES[kind])


def _unpack(payload: bytes, device: torch.device) -> Errors:
    arrays = unpacked(payload)

    def tensor(name: str) -> Tensor:
        return torch.as_tensor(arrays[name], device=device)

    def statistics(part: str) -> ErrorStatistics:
        found = {name: arrays[f"{part}.{name}"] for name in STATISTICS if name != "rows"}
        rows = tensor(f"{part}.rows")
        return ErrorStatistics(rows=rows, **{name: float(x) for name, x in found.items()})

    def runs(part: str) -> Runs:
        return Runs(*(tuple(arrays[f"{part}.{name}"].tolist()) for name in Runs._fields))

    read: dict[Any, Callable[[str], Any]]
    read = {ErrorStatistics: statistics, Runs: runs, Tensor: tensor}
    return {
        output: EnsembleErrors(
            **{part: read[kind](f"{output}.{part}") for part, kind in PARTS.items()}
        )
        for output in dict.fromkeys(name.partition(".")[0] for name in arrays)
    }
