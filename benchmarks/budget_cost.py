"""What a budget costs, in float64 oracles of the same case, and what it costs when its family is
kept.

    python -m benchmarks.budget_cost --dtype bf16 --dtype fp32

For every problem of the panel: the family and its draws, the ceiling, the budget the second time
(hash, look-up, allowances; the oracle apart), each over the float64 oracle, the token recurrence
with its proven radius. All in one run, each the best of a few; the medians are what to quote.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
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
                oracle, *others = astuple(found[-1])
                reported = ", ".join(
                    f"{what} {x / oracle:.2f}"
                    for what, x in zip(("family", "ceiling", "kept"), others, strict=True)
                )
                print(
                    f"{name:5s} {entry.name:22s} oracle {1e3 * oracle:8.2f} ms;"
                    f" over it: {reported}",
                    flush=True,
                )
    columns = [
        statistics.median(getattr(x, name) / x.oracle for x in found)
        for name in ("family", "ceiling", "kept")
    ]
    whole = [
        sum(getattr(x, name) for x in found) / sum(x.oracle for x in found)
        for name in ("family", "ceiling", "kept")
    ]
    print(
        "median over {} cases: family {:.2f}, ceiling {:.2f}, kept {:.3f}".format(
            len(found), *columns
        )
    )
    print("sum over all cases: family {:.2f}, ceiling {:.2f}, kept {:.3f}".format(*whole))


if __name__ == "__main__":
    typer.run(main)
