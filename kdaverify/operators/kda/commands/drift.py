"""`kdaverify drift`: error against length as a chart, with that of conforming kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kdaverify.checks.status import Status
from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import SPEC, Isolate, MemoryLimit, TimeLimit, implementation, limits_from
from kdaverify.limits import Limits
from kdaverify.report.summary import write_json
from kdaverify.verdicts.decision import Ruling

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.checks.growth import Growth
    from kdaverify.problems import Problem

# Sequences measured at a time: enough for a limit, and few enough that an interrupted measurement
# has something to keep.
GROUP = 4
REPORTED = (4096, 32768, 131072)


@dataclass(frozen=True)
class DriftMeasurement:
    """What is measured of whom."""

    adapter: Adapter
    problems: tuple[Problem, ...]
    way: Any

    @property
    def title(self) -> str:
        first = self.problems[0]
        return (
            f"{self.adapter.name}, {first.dtype}, {self.way}, gates {first.gate}, beta"
            f" {first.beta}, {first.T} tokens"
        )


Impl = Annotated[str, typer.Option(help=SPEC)]
Tokens = Annotated[
    int,
    typer.Option(help="tokens of the longest run, a multiple of 64; slopes are judged from 4096"),
]
Sequences = Annotated[
    int, typer.Option(min=1, help="independent sequences, rounded up to a multiple of four")
]
MeasuredFormat = Annotated[
    str | None, typer.Option(help="format of q, k, v; default: the narrowest it takes")
]
ProbeName = Annotated[str, typer.Option(help="memory, held, faint or writes")]
Way = Annotated[
    str, typer.Option(help="uncut, resumed (64 parts) or decoded (the last tokens one at a time)")
]
Width = Annotated[int, typer.Option(min=1, help="width of K and V")]
FirstSeed = Annotated[
    int, typer.Option("--kda-seed", min=0, help="seed of the first four sequences")
]
WantedDevice = Annotated[
    str | None, typer.Option(help="refuse an implementation that would run on another device")
]
ChartFile = Annotated[Path | None, typer.Option(help="draw to this .svg, .png or .html file")]
FiguresFile = Annotated[Path | None, typer.Option("--json", help="write every figure to this file")]


def drift(
    impl: Impl = "eager",
    tokens: Tokens = 16384,
    seeds: Sequences = 8,
    dtype: MeasuredFormat = None,
    probe: ProbeName = "memory",
    way: Way = "uncut",
    width: Width = 16,
    kda_seed: FirstSeed = 0,
    device: WantedDevice = None,
    out: ChartFile = None,
    json_file: FiguresFile = None,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Measure how the error grows with the number of tokens, beside the band of conforming kernels.

    Conforming kernels of the declared contract are emulated on the same inputs; the reference is
    the float64 chunk form, certified on windows.

    memory: one write, then slow decay. held: an initial state, no write. faint: orthogonal keys, no
    decay, faint writes. writes: random.

    Examples:
    kdaverify drift --impl my_port.py --tokens 131072 --out drift.svg
    kdaverify drift --impl my_port.py --way resumed --tokens 8192 --json drift.json

    Ctrl-C ends the measurement and keeps the sequences that are done.

    Exit codes: 0 no drift beyond conforming kernels, 1 drift, 2 harness or usage error, 3 not
    measured.
    """
    _check(probe, way, tokens, out)
    adapter = implementation(impl, isolate=isolate, limits=limits_from(time_limit, memory_limit))
    _check_device(adapter, device)
    groups = range(kda_seed, kda_seed - (-seeds // GROUP))
    problems = _problems(probe, _measured_dtype(adapter, dtype), tokens, width, groups)
    tested, console = DriftMeasurement(adapter, problems, way), Console()
    try:
        growths = _measured(tested, console)
    finally:
        adapter.end()
    if not growths:
        return Ruling.INSUFFICIENT.exit_code
    rejected = _show(console, tested, growths)
    if out is not None:
        _draw(console, out, tested, growths)
    write_json(json_file, lambda: _figures(tested, growths))
    return Ruling.REJECT.exit_code if rejected else Ruling.ACCEPT.exit_code


def _check(probe: str, way: str, tokens: int, out: Path | None) -> None:
    """Refuses before anything is measured what could not be measured, or not written."""
    from kdaverify.checks.drift import route
    from kdaverify.problems.drift_probes import PROBES, WAYS
    from kdaverify.report.drift_picture import MISSING, SUFFIXES

    if probe not in PROBES:
        raise Complaint(f"--probe: wanted one of {', '.join(PROBES)}, got {probe!r}")
    if way not in WAYS:
        raise Complaint(f"--way: wanted one of {', '.join(WAYS)}, got {way!r}")
    with as_complaint(ValueError, prefix="--tokens: "):
        route(tokens, way)
    if out is not None and out.suffix not in SUFFIXES:
        raise Complaint(f"--out: wanted a file ending in {', '.join(SUFFIXES)}, got {out}")
    if out is not None and util.find_spec("vl_convert") is None:
        raise Complaint(f"--out: {MISSING}")


def _check_device(adapter: Adapter, device: str | None) -> None:
    from kdaverify.adapters.placement import runs_elsewhere

    misplaced = None if device is None else runs_elsewhere(adapter, device)
    if misplaced:
        raise Complaint(misplaced)


def _measured_dtype(adapter: Adapter, dtype: str | None) -> str:
    """The format that is wanted, else the narrowest that the kernel takes."""
    from kdaverify.problems.drift_probes import MEASURED

    taken = [name for name in MEASURED if name in adapter.dtypes]
    if dtype is not None and dtype not in taken:
        raise Complaint(
            f"--dtype: {adapter.name} is measured in {', '.join(taken) or 'no format'}, got"
            f" {dtype!r}"
        )
    if not taken:
        raise Complaint(
            f"--impl: {adapter.name} takes {', '.join(adapter.dtypes)}: too precise to be measured"
            " against float64"
        )
    return dtype or taken[0]


def _problems(probe: str, dtype: str, tokens: int, width: int, seeds: range) -> tuple[Problem, ...]:
    from kdaverify.problems.drift_probes import drift_problem

    return tuple(
        drift_problem(probe, dtype, tokens=tokens, samples=GROUP, seed=seed, width=width)
        for seed in seeds
    )


def _measured(tested: DriftMeasurement, console: Console) -> tuple[Growth, ...]:
    """The growth of every output over the sequences measured before the end, or Ctrl-C."""
    from kdaverify.budgets.ensemble import ContractOverflow
    from kdaverify.checks.drift import Unmeasurable
    from kdaverify.checks.execute import CallError
    from kdaverify.checks.growth import pooled
    from oracles.certified import UncertifiedError

    done = list[tuple["Growth", ...]]()
    try:
        for growths in _groups(tested, console):
            done.append(growths)
    except KeyboardInterrupt:
        console.print(
            f"interrupted: {len(done)} of {len(tested.problems)} groups of {GROUP} sequences are"
            " kept"
        )
    except (Unmeasurable, ContractOverflow, UncertifiedError) as reason:
        console.print(Text(f"not measured: {reason}", style="bold yellow"))
    except CallError as fault:
        raise Complaint(f"{tested.adapter.name}: {fault.status}: {fault.message}") from None
    return tuple(pooled(parts) for parts in zip(*done, strict=True))


def _groups(tested: DriftMeasurement, console: Console) -> Iterator[tuple[Growth, ...]]:
    from kdaverify.checks.drift import measure, route

    steps = len(route(tested.problems[0].T, tested.way, factor=2).at) + 2
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(tested.adapter.name, total=steps * len(tested.problems))
        for problem in tested.problems:
            yield measure(
                tested.adapter, problem, tested.way, factor=2, passed=_advance(bar, task)
            ).growths


def _advance(bar: Progress, task: Any) -> Callable[[str], None]:
    return lambda what: bar.update(task, advance=1, description=f"after {what}")


def _show(console: Console, tested: DriftMeasurement, growths: tuple[Growth, ...]) -> bool:
    """Prints the chart and the figures of every output; whether one of them drifts."""
    from kdaverify.checks.drift import outcome
    from kdaverify.report.drift_chart import chart

    console.print(Text(f"{tested.title}, {len(growths[0].kernel.rms)} sequences", style="bold"))
    rejected = False
    for growth in growths:
        found = outcome(growth)
        rejected = rejected or found.status.rejects
        console.print(chart(growth))
        console.print(_table(growth))
        console.print(
            Text(
                str(found.status), style="bold green" if found.status is Status.PASS else "bold red"
            )
        )
        console.print()
    return rejected


def _draw(
    console: Console, out: Path, tested: DriftMeasurement, growths: tuple[Growth, ...]
) -> None:
    from kdaverify.report.drift_picture import write

    write(out, growths, tested.title)
    console.print(Text(f"drawn: {out}"), soft_wrap=True)


def _table(growth: Growth) -> Table:
    table = Table.grid(padding=(0, 2))
    low, high = growth.conforming_slopes
    rows = {
        "grows as": f"T^{growth.own_slope:.2f}; conforming kernels T^{low:.2f} to T^{high:.2f}",
        "relative to the steepest conforming kernel": (
            f"T^{growth.slope:.2f}, at least T^{growth.slope_limit:.2f} (99 %); limit T^0.05"
        ),
        "systematic": f"{growth.bias:.2f} of the error; limit {growth.bias_allowed:.2f}",
        "error / tolerance": ", ".join(f"{used:.2f} at {T}" for T, used in _reported(growth)),
    }
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), value)
    return table


def _reported(growth: Growth) -> list[tuple[int, float]]:
    points = list(zip(growth.lengths, growth.used.tolist(), strict=True))
    return [point for point in points if point[0] in REPORTED or point is points[-1]]


def _figures(tested: DriftMeasurement, growths: tuple[Growth, ...]) -> dict[str, Any]:
    return {
        "implementation": tested.adapter.name,
        "contract": tested.adapter.contract(tested.problems[0].dtype).name,
        "kernel": tested.adapter.proof(),
        "environment": tested.adapter.environment(),
        "way": tested.way,
        "problems": [problem.to_json() for problem in tested.problems],
        "outputs": {growth.output: growth.figures() for growth in growths},
    }
