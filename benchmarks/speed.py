"""What an answer costs, and on what the time is spent.

    python -m benchmarks.speed
    python -m benchmarks.speed --impl eager --impl eager-merge --only smoke
    python -m benchmarks.speed --jobs 2 --markdown reports/speed.md

Each row is a process of its own with an empty cache, on one core. Seconds are of the CPU, so that a
busy machine changes them little. What they are spent on is sampled: a timer
of the process's CPU time interrupts it, and the stack says which of KINDS was at work. Nothing of
the harness is wrapped or replaced, so that the measurement does not change what it measures.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, Self

import typer

INTERVAL: Final = 0.004
"""Seconds of CPU between two samples; no finer than the ticks of most kernels."""
KERNEL, EXACT, ENSEMBLE = "kernel", "exact values", "tolerances"
IMPORTS, HARNESS = "imports", "harness"
KINDS: Final = (KERNEL, EXACT, ENSEMBLE, IMPORTS, HARNESS)
CALL: Final = (("kdaverify/checks/execute.py", "watched"), ("kdaverify/adapters/stages.py", ""))
"""What runs a kernel, or a stage of one: all that it calls is the kernel's, even code of ours."""
WORK: Final = (
    ("<frozen importlib", "", IMPORTS),
    ("kdaverify/checks/compare.py", "", HARNESS),
    ("oracles/cache.py", "", HARNESS),
    ("kdaverify/budgets/ensemble_cache.py", "", HARNESS),
    ("kdaverify/budgets/ceiling", "", ENSEMBLE),
    # They serve the comparison too; whoever calls them says which it is.
    ("kdaverify/budgets/budget.py", "", ""),
    ("kdaverify/budgets/statistics.py", "", ""),
    ("kdaverify/budgets/bias.py", "", ""),
    ("kdaverify/budgets/error_model.py", "", ""),
    ("kdaverify/budgets/contract", "", ""),
    ("kdaverify/budgets/presets", "", ""),
    ("kdaverify/budgets/declared.py", "", ""),
    ("kdaverify/budgets/formats.py", "", ""),
    ("kdaverify/budgets/", "", ENSEMBLE),
    ("kdaverify/operators/attention/tolerance.py", "", ENSEMBLE),
    ("kdaverify/operators/layer/tolerance.py", "", ENSEMBLE),
    ("kdaverify/operators/pointwise/tolerance.py", "", ENSEMBLE),
    ("oracles/certified/", "", EXACT),
    ("oracles/running_error.py", "", EXACT),
    ("oracles/adjoint_error.py", "", EXACT),
    ("oracles/long_run.py", "", EXACT),
    ("oracles/attention/exact", "", EXACT),
    ("oracles/attention/softmax_precision.py", "", EXACT),
    ("oracles/attention/backward.py", "", EXACT),
    ("oracles/pointwise/", "", EXACT),
)
"""(file, function, kind): the innermost frame of a stack that is listed decides; "" passes on to
the next one outward. No other frame than these: the harness."""
SMOKE: Final = (
    "eager",
    "kdaverify.faults.adapter:GDN",
    "kdaverify.faults.adapter:DELTA",
    "torch-short-conv",
    "torch-gated-norm",
    "eager-attention",
    "eager-mla-decode",
    "eager-sparse-attention",
    "eager-merge",
)
"""An implementation of every operator that has one of ours."""
ACCEPTANCE: Final = SMOKE[3:]
"""Without the delta rules, whose acceptance takes a core longer than a whole run of the others."""
RIGHT: Final = "benchmarks.speed_kernels:RIGHT"
WRONG: Final = "benchmarks.speed_kernels:WRONG"
PARTS: Final = ("smoke", "acceptance", "lengths", "rejection")
LENGTHS: Final = (64, 256, 1024, 4096)
MOST: Final = {"bf16": 4096, "fp32": 1024}
"""The longest by format: above bf16 exact values are balls."""
LARGEST_SHARE: Final = 0.15
"""The harness's own share of a smoke that is accepted."""


@dataclass(frozen=True)
class Cost:
    """One measurement.

    Args:
        seconds: of CPU, of the process and its children.
        shares: of the samples, by kind.
        said: what was judged, and how it ended.
    """

    seconds: float
    shares: dict[str, float]
    said: str

    @property
    def overhead(self) -> float:
        """The share of what is neither kernel nor exact values nor tolerances."""
        return self.shares.get(HARNESS, 0.0) + self.shares.get(IMPORTS, 0.0)

    def cells(self) -> tuple[str, ...]:
        return (
            f"{self.seconds:.1f}",
            *(f"{100 * self.shares.get(kind, 0.0):.0f} %" for kind in KINDS),
            self.said,
        )


class Sampler:
    """Counts what the process is at work on, at equal distances of its CPU time."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _take(self, _: int, frame: FrameType | None) -> None:
        self.found[kind_of(_frames(frame))] += 1

    def cost(self, said: str) -> Cost:
        times, total = os.times(), max(1, self.found.total())
        seconds = times.user + times.system + times.children_user + times.children_system
        return Cost(seconds, {kind: n / total for kind, n in self.found.items()}, said)


def _frames(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """(file, function) of a stack, the innermost first."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back


def kind_of(frames: Iterable[tuple[str, str]]) -> str:
    """What a stack, the innermost frame first, is at work on."""
    decided = ""
    for path, function in frames:
        if any(file in path and called in ("", function) for file, called in CALL):
            return KERNEL
        decided = decided or next(
            (kind for file, called, kind in WORK if file in path and called in ("", function)), ""
        )
    return decided or HARNESS


def judged(spec: str, profile: str) -> str:
    """Judges an implementation in this process; how it ended."""
    from kdaverify.cli.request import Request
    from kdaverify.cli.run import session
    from kdaverify.plugin.session import decisions_of

    config, _ = session(
        Request(
            impls=(spec,),
            profile=profile,
            seed=None,
            record=None,
            json_file=None,
            workers="0",
            require_impl=True,
        )
    )
    assert config is not None
    (decision,) = decisions_of(config)
    return f"{decision.ruling.name.lower()}, {decision.cases} cases"


def length(spec: str, dtype: str, T: int) -> str:
    """Judges one call of so many tokens and its gradients; what they came to."""
    from kdaverify.adapters.registry import find
    from kdaverify.checks.properties import check
    from kdaverify.problems import Problem
    from kdaverify.process import use_one_core

    use_one_core()
    problem = Problem.model_validate(
        {"B": 1, "T": T, "H": 1, "HV": 1, "K": 32, "V": 32, "dtype": dtype, "seed": 1}
        | {"gate": "log-sigmoid", "key": "random", "beta": "uniform"}
        | {"state": "random", "value": "normal"}
    )
    found = [
        *check("forward", find(spec), problem, {}),
        *check("gradients", find(spec), problem, {"of": "both"}),
    ]
    return ", ".join(sorted({f"{outcome.status}" for outcome in found}))


TESTS: Final[Mapping[str, Callable[..., str]]] = {"judged": judged, "length": length}


def measured(test: str, *arguments: object) -> Cost:
    """The cost of a test in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.speed", "--inside", json.dumps([test, *arguments])],
            env={**os.environ, "KDAVERIFY_CACHE": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    cost = Cost(**json.loads(ran.stdout.splitlines()[-1]))
    # A run of all parts takes minutes: what is known so far is shown.
    print(*arguments, *cost.cells(), sep="  ", file=sys.stderr, flush=True)
    return cost


def _inside(test: str, *arguments: Any) -> None:
    """The other end of `measured`: the last line is the cost. Imports count: every session has
    them.
    """
    with Sampler() as sampler:
        said = TESTS[test](*arguments)
    print(json.dumps(asdict(sampler.cost(said))))


def table(head: str, rows: Sequence[tuple[str, Cost]]) -> str:
    """A Markdown table of costs."""
    lines = [
        f"| {head} | CPU s | {' | '.join(KINDS)} | result |",
        f"|---|{'---:|' * (1 + len(KINDS))}---|",
        *(f"| {' | '.join((name, *cost.cells()))} |" for name, cost in rows),
    ]
    return "\n".join(lines)


Row = tuple[str, tuple[str, *tuple[object, ...]]]
"""The name of a measurement, and the test with its arguments."""


def _rows(impls: Sequence[str]) -> dict[str, tuple[str, str, list[Row]]]:
    """By part: its heading, what its rows are, and they."""
    lengths = [(dtype, T) for dtype, most in MOST.items() for T in LENGTHS if most >= T]
    return {
        "smoke": (
            "Smoke by operator",
            "implementation",
            [(spec.rpartition(":")[2], ("judged", spec, "smoke")) for spec in impls],
        ),
        "acceptance": (
            "Acceptance by operator",
            "implementation",
            [(spec, ("judged", spec, "acceptance")) for spec in impls if spec in ACCEPTANCE],
        ),
        "lengths": (
            "Cost against T: one call of `eager` forward and one backward, K = V = 32, one head",
            "call",
            [(f"{dtype}, T = {T}", ("length", "eager", dtype, T)) for dtype, T in lengths],
        ),
        "rejection": (
            "Reject against accept: `eager` in bf16 alone, and with a planted fault",
            "kernel",
            [(spec.rpartition(":")[2], ("judged", spec, "smoke")) for spec in (RIGHT, WRONG)],
        ),
    }


def _verdict(rows: Sequence[tuple[str, Cost]]) -> str:
    over = [name for name, cost in rows if cost.overhead > LARGEST_SHARE]
    return f"Harness and imports above {100 * LARGEST_SHARE:.0f} %: {', '.join(over) or 'none'}."


def main(
    impl: Annotated[list[str] | None, typer.Option(help="whose smoke; repeatable")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(PARTS)}")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the report here too")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes at once")] = 1,
    inside: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Prints what smoke and acceptance cost by operator, a call by its length, and a rejection."""
    if inside:
        _inside(*json.loads(inside))
        return
    report = ["# What an answer costs", _HEAD]
    with ThreadPoolExecutor(jobs) as pool:
        chosen = {
            name: part for name, part in _rows(impl or SMOKE).items() if name in (only or PARTS)
        }
        begun = {
            name: [(row, pool.submit(measured, *test)) for row, test in rows]
            for name, (_, _, rows) in chosen.items()
        }
        for name, (head, kind, _) in chosen.items():
            costs = [(row, cost.result()) for row, cost in begun[name]]
            report.append(f"## {head}\n\n{table(kind, costs)}\n\n{_verdict(costs)}")
    print("\n\n".join(report))
    if markdown is not None:
        markdown.write_text("\n\n".join(report) + "\n", encoding="utf-8")


_HEAD: Final = """Made by `python -m benchmarks.speed --jobs 2 --markdown reports/speed.md`. Every
row is a process of its own on one core with an empty cache; seconds are of the CPU, imports
included. A timer of that CPU time samples what is at work: the kernel and its stages; exact values
(float64 with its radius, balls); tolerances (reference ensemble, samples of roundings, proven
bounds); imports; and the harness, which is everything else (collection, random problems,
comparison, records, terminal). What the tests of other projects cost for the same kernel was not
measured here."""


if __name__ == "__main__":
    typer.run(main)
