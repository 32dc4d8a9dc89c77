"""What a tolerance costs, in float64 oracles of the same case, and what it costs when the errors of
its reference ensemble are kept.

    python -m benchmarks.budget_cost --dtype bf16 --dtype fp32

For every problem of the panel: the ensemble and its draws, the ceiling, the errors the second time
(hash, look-up), each over the float64 oracle, the token recurrence with its proven radius. All in
one run, each the best of a few; the medians are what to quote.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Annotated

import torch
import typer

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.budget import EnsembleErrors, ensemble_errors
from kdaverify.budgets.ceiling import Ceilings
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.ensemble_cache import EnsembleCache
from kdaverify.budgets.formats import FORMATS
from kdaverify.problems.panel import panel
from kdaverify.problems.problem import Problem
from oracles.cache import AnswerCache
from oracles.running_error import enclosed


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    oracle: float
    ensemble: float
    ceiling: float
    kept: float

    @property
    def others(self) -> tuple[float, ...]:
        """What is measured in oracles, in the order of OTHERS."""
        return astuple(self)[1:]

    def __str__(self) -> str:
        over = [seconds / self.oracle for seconds in self.others]
        return f"oracle {1e3 * self.oracle:8.2f} ms; over it: {_listed(over)}"


OTHERS = tuple(field.name for field in fields(Cost))[1:]


def summary(found: Sequence[Cost]) -> str:
    """The medians of the ratios, and the ratios of the sums."""
    ratios = [[seconds / one.oracle for seconds in one.others] for one in found]
    oracles, *sums = (sum(column) for column in zip(*map(astuple, found), strict=True))
    medians = _listed(map(statistics.median, zip(*ratios, strict=True)))
    return (
        f"median over {len(found)} cases: {medians}\n"
        f"sum over all cases: {_listed(total / oracles for total in sums)}"
    )


def _listed(ratios: Iterable[float]) -> str:
    return ", ".join(f"{name} {x:.3f}" for name, x in zip(OTHERS, ratios, strict=True))


def best(call: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest of a few calls."""
    taken = list[float]()
    for _ in range(runs):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return min(taken)


def cost(problem: Problem, adapter: Adapter, folder: Path, runs: int) -> Cost:
    inputs, contract, io = (
        adapter.received(problem.inputs()),
        adapter.contract(problem.dtype),
        FORMATS[problem.dtype],
    )
    truth = enclosed(inputs)
    emulation = emulate(inputs, contract, io)
    keeper = EnsembleCache(inputs, contract, io, cache=AnswerCache(folder))

    def errors() -> dict[str, EnsembleErrors]:
        places = enumerate(truth.named().items())
        rounded, drawn = [*emulation.rounded.values()], emulation.drawn
        return {
            n: ensemble_errors(
                x, [run[i] for run in rounded], [run[i] for run in drawn], io=io, lost=0.0
            )
            for i, (n, x) in places
        }

    keeper.of(truth.method, errors)
    return Cost(
        oracle=best(lambda: enclosed(inputs), runs),
        ensemble=best(lambda: (emulate(inputs, contract, io), errors()), runs),
        ceiling=best(lambda: Ceilings(inputs, contract, io).declared, runs),
        kept=best(lambda: keeper.of(truth.method, errors), runs),
    )


def main(
    impl: Annotated[str, typer.Option(help="whose contract")] = "eager",
    dtype: Annotated[list[str] | None, typer.Option(help="formats, repeatable")] = None,
    profile: Annotated[str, typer.Option(help="of the panel")] = "smoke",
    runs: Annotated[int, typer.Option(help="of which the best counts")] = 3,
) -> None:
    """Prints every case, then the medians."""
    torch.set_num_threads(1)
    adapter, found = find(impl), list[Cost]()
    with tempfile.TemporaryDirectory() as folder:
        for name in dtype or ["bf16", "fp32"]:
            for entry in panel(name, profile):
                found.append(cost(entry.problem, adapter, Path(folder), runs))
                print(f"{name:5s} {entry.name:22s} {found[-1]}", flush=True)
    print(summary(found))


if __name__ == "__main__":
    typer.run(main)
