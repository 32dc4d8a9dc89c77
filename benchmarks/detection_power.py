"""How often a conforming kernel is rejected, and how often a small fault is caught, with exact
binomial limits.

    python -m benchmarks.detection_power --problems 1000 --seed 5 --minutes 25 --json power.json
    python -m benchmarks.detection_power --pool power*.json

Conforming runs, on problems sampled as in the suites: `eager` and `eager-recurrent` in every
format, sums taken backwards, and stochastic-rounding samples of a seed that no tolerance has
used. A borderline failure counts as an alarm only where fresh seeds confirm it, as in a session.

Faults are planted in the errors of `eager` and `eager-recurrent` on problems of ordinary size, 8
heads of width 32 over 96 tokens, by `benchmarks.planted_errors`. Over a run of 40 such cases the
rms error is raised by a tenth.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.binomial import interval, upper
from benchmarks.false_alarms import DTYPES, backward, drawn
from benchmarks.planted_errors import FAULTS, Scene
from kdaverify.adapters import find
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import Emulation, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.monte_carlo import MonteCarloArithmetic
from kdaverify.budgets.standard import Reference, standard
from kdaverify.checks.borderline import RetestFinding, is_near
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.recheck import recheck
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.verdicts.paired import paired
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

SHIPPED: Final = ("eager", "eager-recurrent")
GATES: Final = ("mild", "slow", "log-sigmoid", "bound-5", "mixed", "zero")
OTHER_SEED: Final = 1000
RUN: Final = 40
CONFORMING: Final = "conforming runs"
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Bench:
    """One problem under the contract of one shipped kernel."""

    problem: Problem
    name: str
    inputs: Inputs = field(init=False)
    contract: Contract = field(init=False)
    emulation: Emulation = field(init=False)
    held: Reference = field(init=False)

    def __post_init__(self) -> None:
        io, made = FORMATS[self.problem.dtype], object.__setattr__
        made(self, "inputs", self.problem.inputs())
        made(self, "contract", find(self.name).contract(self.problem.dtype))
        made(self, "emulation", emulate(self.inputs, self.contract, io))
        made(self, "held", standard(self.inputs, self.contract, io, self.emulation))

    def key(self, what: str) -> Key:
        return what, self.problem.dtype, self.contract.name

    def conforming(self) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
        """Kernels that no tolerance has been made of."""
        io, shipped = FORMATS[self.problem.dtype], find(self.name).forward(self.inputs)
        yield self.name, (shipped.o, shipped.final_state)
        yield "sums backwards", backward(self.contract, self.problem.dtype).run(self.inputs)
        noisy = MonteCarloArithmetic(self.contract, io).run(
            self.inputs, seed=OTHER_SEED + self.problem.seed % OTHER_SEED
        )[0]
        yield "noise", tuple(self.returned(place, run) for place, run in enumerate(noisy))

    def returned(self, place: int, output: Tensor) -> Tensor:
        """As a kernel would return it: what cancels to an exact 0 in every kernel, or is none in
        the output's format, is 0.
        """
        fmt = FORMATS[self.problem.dtype] if OUTPUTS[place] == "o" else self.contract.carry
        zero = torch.stack([run[place] == 0 for run in self.emulation.rounded.values()]).all(0)
        return output.masked_fill(zero | (fmt.round(output) == 0), 0)

    def compared(self, run: tuple[Tensor, ...]) -> dict[str, Comparison]:
        return {
            name: compare(name, tensor, self.held, self.inputs)
            for name, tensor in zip(OUTPUTS, run, strict=True)
        }

    def faulty(self) -> Iterator[tuple[str, Comparison]]:
        """Every fault in every output where it is planted."""
        shipped = find(self.name).forward(self.inputs)
        rng = torch.Generator().manual_seed(self.problem.seed)
        for place, name in enumerate(OUTPUTS):
            truth = self.held.exact(name)
            runs = [run[place] for run in (*self.emulation.rounded.values(), *self.emulation.drawn)]
            scene = Scene(
                truth.high,
                truth.error(getattr(shipped, name)),
                [truth.error(run) for run in runs],
                rng,
            )
            for fault, (plant, outputs) in FAULTS.items():
                if name in outputs:
                    yield fault, compare(name, truth.high + plant(scene), self.held, self.inputs)


@dataclass
class Tally:
    """Hits and trials by what was tried, format and contract; verdicts on conforming kernels;
    borderline failures, and alarms that fresh seeds confirm.
    """

    hits: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    trials: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    passed: list[Verdict] = field(default_factory=list[Verdict])
    near: list[tuple[Bench, str, list[str]]] = field(
        default_factory=list[tuple[Bench, str, list[str]]]
    )
    alarms: list[str] = field(default_factory=list[str])

    def keep(self, path: Path | None) -> None:
        """Writes what is known, if there is a path to write it to."""
        if path is not None:
            table = [
                {"key": key, "hits": self.hits[key], "trials": trials}
                for key, trials in self.trials.items()
            ]
            near = [_reported(bench, who, ", ".join(outputs)) for bench, who, outputs in self.near]
            passed = [
                verdict.model_dump(mode="json", exclude_defaults=True) for verdict in self.passed
            ]
            path.write_text(
                json.dumps(
                    {"table": table, "near": near, "alarms": self.alarms, "passed": passed},
                    indent=2,
                )
                + "\n"
            )

    def take(self, path: Path) -> None:
        """Adds what a run wrote; its borderline failures have been re-tested there."""
        found = json.loads(path.read_text())
        for row in found["table"]:
            self.add(tuple(row["key"]), row["hits"], row["trials"])
        self.passed += [Verdict.model_validate(row) for row in found["passed"]]
        self.alarms += found["alarms"]

    def add(self, key: Key, hits: int, trials: int = 1) -> None:
        self.hits[key] += hits
        self.trials[key] += trials


def judge_conforming(bench: Bench, tally: Tally) -> None:
    for who, run in bench.conforming():
        over = {name: c for name, c in bench.compared(run).items() if c.status.rejects}
        tally.add(bench.key(f"{CONFORMING}, {who}"), bool(over))
        if over and all(is_near(c.status, c.statistic, c.ratio) for c in over.values()):
            tally.near.append((bench, who, list(over)))
        else:
            tally.alarms += [_reported(bench, who, str(c)) for c in over.values()]


def judge_near(tally: Tally) -> None:
    """Re-tests borderline failures, each reported as it is decided."""
    for bench, who, outputs in track(tally.near, description="borderline failures again"):
        for name, found in recheck(_again(bench.name, who), bench.problem, outputs).items():
            said = _reported(bench, who, f"{name}: {found}")
            print(said, flush=True)
            tally.alarms += [] if found.finding is RetestFinding.PASSED_ON_RETEST else [said]


def _reported(bench: Bench, who: str, said: str) -> str:
    return f"{who}, {bench.contract.name}: {said}\n  {bench.problem.to_json()}"


def _again(name: str, who: str) -> Callable[[Problem], list[Outcome]]:
    def judge(problem: Problem) -> list[Outcome]:
        bench = Bench(problem, name)
        return [
            Outcome(c.output, c.status, str(c), c)
            for c in bench.compared(dict(bench.conforming())[who]).values()
        ]

    return judge


def judge_faults(bench: Bench, tally: Tally) -> None:
    for fault, comparison in bench.faulty():
        tally.add(bench.key(f"{fault}: {comparison.output}"), comparison.status.rejects)
    shipped = dict(bench.conforming())[bench.name]
    for name, comparison in bench.compared(shipped).items():
        tally.passed.append(
            Verdict(
                implementation=bench.name,
                property="forward",
                dtype=bench.problem.dtype,
                case=bench.problem.id,
                output=name,
                status=Status.PASS,
                contract=bench.contract.name,
                peers=comparison.peers,
            )
        )


def judge_runs(tally: Tally) -> Tally:
    """Runs of RUN cases of one format, contract and output, as they were and with a tenth more
    error; the last few cases are left over.
    """
    groups, found = defaultdict[Key, list[Verdict]](list), Tally()
    for verdict in tally.passed:
        groups[verdict.output, verdict.dtype, verdict.contract].append(verdict)
    for (output, dtype, contract), rows in groups.items():
        for first in range(0, len(rows) - RUN + 1, RUN):
            run = rows[first : first + RUN]
            for what, rise in _rises(run).items():
                found.add(
                    (f"{what}: {output}", dtype, contract),
                    any(group.raised for group in paired(_louder(run, rise))),
                )
    return found


def _rises(run: list[Verdict]) -> dict[str, float]:
    """What a run's errors are multiplied by;
    runs whose conforming kernels have unusually small errors are not compared.
    """
    rises = {f"{CONFORMING}, a whole run": 1.0, "rms at 1.1 times its own over a run": 1.1}
    for group in paired(run):
        rises["rms at 1.1 times the nearest conforming kernel's over a run"] = 1.1 / group.ratio
    return rises


def _louder(run: list[Verdict], rise: float) -> list[Verdict]:
    return [
        verdict.model_copy(update={"peers": tuple(rise * ratio for ratio in verdict.peers)})
        for verdict in run
    ]


def ordinary(count: int, dtype: str, start: int) -> list[Problem]:
    """Problems of ordinary size, through the gates in turn."""
    common: dict[str, Any] = {"B": 1, "T": 96, "H": 8, "HV": 8, "K": 32, "V": 32, "dtype": dtype}
    drawn_as: dict[str, Any] = {
        "key": "random",
        "beta": "uniform",
        "state": "random",
        "value": "normal",
    }
    return [
        Problem(**common, **drawn_as, gate=GATES[i % len(GATES)], seed=start * 100000 + i)
        for i in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems",
        type=int,
        default=1000,
        help="of the conforming runs, three each; a quarter per format (default 1000)",
    )
    parser.add_argument(
        "--faulty", type=int, default=480, help="problems in which faults are planted (default 480)"
    )
    parser.add_argument("--seed", type=int, default=5, help="of the random problems (default 5)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=25.0,
        help="for the table; borderline failures are re-tested after (default 25)",
    )
    parser.add_argument("--json", type=Path, help="write what was found here")
    parser.add_argument(
        "--pool",
        type=Path,
        nargs="+",
        default=[],
        help="judge nothing: add up what runs with other seeds wrote",
    )
    reported = parser.parse_args()
    tally = Tally()
    if not reported.pool:
        measure(reported, tally)
    for path in reported.pool:
        tally.take(path)
    show(tally)
    conclude(tally)


def measure(reported: argparse.Namespace, tally: Tally) -> None:
    """Everything that is judged, written as soon as it is known."""
    torch.set_num_threads(1)
    ends = time.monotonic() + 60 * reported.minutes
    share, part = reported.faulty // len(DTYPES), reported.problems // len(DTYPES)
    todo: list[tuple[Callable[[Bench, Tally], None], Problem, str]] = []
    for dtype in DTYPES:
        todo += [
            (judge_faults, p, SHIPPED[i % 2])
            for i, p in enumerate(ordinary(share, dtype, reported.seed))
        ]
        todo += [
            (judge_conforming, p, SHIPPED[i % 2])
            for i, p in enumerate(drawn(part, dtype, reported.seed) if part else [])
        ]
    # Every format to the same share, if time runs out.
    order = torch.randperm(
        len(todo), generator=torch.Generator().manual_seed(reported.seed)
    ).tolist()
    for number in track(order, description="judging"):
        if time.monotonic() < ends:
            judge, problem, name = todo[number]
            judge(Bench(problem, name), tally)
    # Before the borderline failures too: their re-tests may take long.
    tally.keep(reported.json)
    judge_near(tally)
    tally.keep(reported.json)


def show(tally: Tally) -> None:
    for table in (tally, judge_runs(tally)):
        for (what, dtype, contract), trials in sorted(table.trials.items()):
            hits = table.hits[what, dtype, contract]
            low, high = interval(hits, trials)
            print(
                f"{hits:5d} of {trials:5d} rejected ({100 * low:5.1f} % to {100 * high:5.1f} %):"
                f" {what}, {dtype}, {contract}"
            )


def conclude(tally: Tally) -> None:
    conforming = sum(n for (what, _, _), n in tally.trials.items() if what.startswith(CONFORMING))
    limit = upper(len(tally.alarms), conforming)
    print(*tally.alarms, sep="\n")
    print(
        f"{len(tally.alarms)} false alarms that fresh seeds confirm in {conforming} conforming"
        f" runs: less than {limit:.2g} of them, with 95 %"
    )


if __name__ == "__main__":
    main()
