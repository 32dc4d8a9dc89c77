"""How far conforming kernels reach into each limit of the tolerance, and what each limit finds.

    python -m benchmarks.factors --problems 300

Conforming runs are the shipped kernels, sums taken backwards, and stochastic-rounding samples from
a seed that no tolerance used, on problems of ordinary size. Of each limit the worst and the 99 %
quantile of value / limit are printed, without the limit's factor too where it is a product of one.
Then two faults of single elements, planted in the error of the shipped kernel, and which limits
find them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import torch
import typer
from rich.progress import track
from torch import Tensor

from benchmarks.detection_power import GATES, SHIPPED, Bench, ordinary
from kdaverify.budgets.budget import Budget
from kdaverify.budgets.constants import BIAS_DEVIATIONS, MEDIAN_FACTOR, SMALLEST_BIAS, TAIL_FACTOR
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.monte_carlo import MonteCarloArithmetic
from kdaverify.budgets.statistics import ErrorStatistics
from oracles.enclosure import Enclosure
from oracles.tensors import OUTPUTS

DTYPES: Final = ("bf16", "fp16", "fp32")
FRESH: Final = 4242
"""Seed of the samples of the first problem; those of tolerances have another."""
SMALL: Final = 0.6
"""Share of the elements, the smallest, that are wrong by several times the median."""
FAINT: Final = 0.02
"""Share of the elements, the smallest, that are 0."""


@dataclass
class Reach:
    """Value / limit by statistic, deviations of the bias, and what limits find of each fault."""

    shares: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    found: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter[str]))

    def take(self, bench: Bench, seed: int) -> None:
        runs = [*_fresh(bench, seed), *(run for _, run in bench.conforming())]
        shipped = dict(bench.conforming())[bench.name]
        for place, name in enumerate(OUTPUTS):
            exact, held = bench.held.exact(name), bench.held.budgets[name]
            for run in runs:
                self._share(held.measure(exact.error(run[place]), exact), held)
            self._bias(bench, [run[place] for run in runs], place, held)
            for fault, error in _faulty(exact, exact.error(shipped[place]), held):
                ratios = held.ratios(held.measure(error, exact))
                by = [statistic for statistic, ratio in ratios.items() if ratio > 1]
                self.found[fault][", ".join(by) or "nothing"] += 1

    def _share(self, found: ErrorStatistics, held: Budget) -> None:
        for statistic, ratio in held.ratios(found).items():
            self.shares[statistic].append(ratio)
        for statistic, factor, slack in (
            ("median", MEDIAN_FACTOR, held.io.unit / 2),
            ("tail", TAIL_FACTOR, held.io.unit),
        ):
            limit = (getattr(held.allowed, statistic) - slack) / factor
            if limit > 0:
                above = max(0.0, getattr(found, statistic) - slack)
                self.shares[f"{statistic} without its factor"].append(above / limit)

    def _bias(self, bench: Bench, outputs: list[Tensor], place: int, held: Budget) -> None:
        """Of the fresh runs beyond the worst of the ensemble, in deviations of its samples."""
        exact, emulation = bench.held.exact(OUTPUTS[place]), bench.emulation

        def bias(output: Tensor) -> float:
            return held.measure(exact.error(output), exact).bias

        samples = [bias(run[place]) for run in emulation.drawn]
        deviation = math.hypot(*samples) / math.sqrt(len(samples))
        worst = max(bias(run[place]) for run in emulation.rounded.values())
        decides = held.allowed.bias == SMALLEST_BIAS
        self.shares["limit of the bias is the least there is"].append(float(decides))
        if deviation:
            beyond = ((bias(output) - worst) / deviation for output in outputs)
            self.shares[f"bias in deviations, of {BIAS_DEVIATIONS:g}"] += beyond


def _fresh(bench: Bench, seed: int) -> Iterator[tuple[Tensor, ...]]:
    io = FORMATS[bench.problem.dtype]
    for run in MonteCarloArithmetic(bench.contract, io).run(bench.inputs, seed=seed):
        yield tuple(bench.returned(place, output) for place, output in enumerate(run))


def _faulty(exact: Enclosure, error: Tensor, held: Budget) -> Iterator[tuple[str, Tensor]]:
    sizes = exact.high.abs()
    own = held.measure(error, exact).median

    def smallest(share: float) -> Tensor:
        return sizes <= sizes.flatten().quantile(share)

    for times in (2, 3, 4):
        wrong = torch.where(smallest(SMALL), times * own * exact.high, error)
        yield f"smallest {SMALL:.0%} of elements wrong by {times} times the median", wrong
    yield f"smallest {FAINT:.0%} of elements 0", torch.where(smallest(FAINT), -exact.high, error)


def main(
    problems: Annotated[int, typer.Option(help="of ordinary size, by format in turn")] = 300,
    start: Annotated[int, typer.Option(help="of their seeds")] = 700,
) -> None:
    torch.set_num_threads(1)
    reach = Reach()
    for i in track(range(problems), description="judging conforming kernels"):
        (problem,) = ordinary(1, DTYPES[i % len(DTYPES)], start + i)
        gate = GATES[i % len(GATES)]
        bench = Bench(problem.replace(H=2, HV=2, gate=gate), SHIPPED[i // len(DTYPES) % 2])
        reach.take(bench, FRESH + i)
    for statistic, values in reach.shares.items():
        ordered = sorted(values)
        quantile, mean = ordered[int(0.99 * len(values)) - 1], sum(values) / len(values)
        print(
            f"{len(values):6d}  worst {ordered[-1]:.3f}, 99 % {quantile:.3f}, mean {mean:.3f}:"
            f" {statistic}"
        )
    for fault, by in reach.found.items():
        print(f"{fault}, of {by.total()}: {', '.join(f'{n} by {what}' for what, n in by.items())}")


if __name__ == "__main__":
    typer.run(main)
