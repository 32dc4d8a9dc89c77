"""Errors of reference ensembles, cached on disk beside certified answers: an ensemble costs
seconds, a look-up a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdaverify.budgets.budget import EnsembleErrors, Runs
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.statistics import ErrorStatistics
from oracles.cache import AnswerCache, answer_key, cache_in, default_folder, digest_of_sources
from oracles.inputs import Inputs

Errors = dict[str, EnsembleErrors]
STATISTICS = tuple(field.name for field in fields(ErrorStatistics))
RUNS = ("rounded", "drawn", "apart")
PARTS = dict.fromkeys(("worst", "margin"), STATISTICS) | dict.fromkeys(RUNS, Runs._fields)


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
        f"{output}.{part}.{name}": _array(getattr(getattr(found, part), name))
        for output, found in errors.items()
        for part, names in PARTS.items()
        for name in names
    }
    arrays |= {f"{output}.plain": _array(found.plain) for output, found in errors.items()}
    file = BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _array(value: Any) -> np.ndarray[Any, Any]:
    return torch.as_tensor(value, dtype=torch.float64).cpu().numpy()


def _unpack(payload: bytes, device: torch.device) -> Errors:
    with np.load(BytesIO(payload), allow_pickle=False) as arrays:

        def statistics(output: str, part: str) -> ErrorStatistics:
            found = {name: arrays[f"{output}.{part}.{name}"] for name in STATISTICS}
            rows = torch.as_tensor(found.pop("rows"), device=device)
            return ErrorStatistics(rows=rows, **{name: float(x) for name, x in found.items()})

        def runs(output: str, part: str) -> Runs:
            return Runs(
                *(tuple(arrays[f"{output}.{part}.{name}"].tolist()) for name in Runs._fields)
            )

        def one(output: str) -> EnsembleErrors:
            worst, margin = (statistics(output, part) for part in ("worst", "margin"))
            plain = torch.as_tensor(arrays[f"{output}.plain"], device=device)
            rounded, drawn, apart = (runs(output, part) for part in RUNS)
            return EnsembleErrors(worst, margin, rounded, drawn, plain, apart)

        return {
            output: one(output)
            for output in dict.fromkeys(name.partition(".")[0] for name in arrays)
        }
