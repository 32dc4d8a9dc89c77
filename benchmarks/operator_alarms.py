"""How often a conforming kernel of an operator is rejected on random problems.

    python -m benchmarks.operator_alarms gdn --runs 2000 --seed 3 --workers 16 --json FILE

Operators are those of the catalogue of faults, the keys of `kdaverify.faults.hosts.HOSTS`. A run
is one conforming kernel on one random problem of its operator, forward and gradients, or of a whole
layer one of its laws, judged as in a session: what is over its tolerance by little is tested again
at fresh seeds. The kernels, those of the operator or those of `--impl`, take turns, in every format
that each takes. The result depends on the seed and not on the number of processes. FILE is written
after every run; the same command continues from a FILE that is there. `--part 3/16` makes every
sixteenth run from the third on: several machines may share them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, cycle
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch
from hypothesis import given, seed, settings
from rich.progress import track

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.faults.hosts import HOSTS
from kdaverify.operator import problem_from_json
from kdaverify.operators.layer.operator import LAYER, applicable
from kdaverify.problems.profiles import settings_for
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.verdict import Verdict

PLAIN: Final[dict[str, dict[str, Any]]] = {"forward": {}, "gradients": {"of": "both"}}
Tests = dict[str, dict[str, Any]]
"""By property, its details."""
Run = tuple[str, str, Tests]
"""A kernel as `--impl` names it, a problem as JSON, and what is tested."""


@dataclass
class Summary:
    """What the runs of one command came to, so far."""

    operator: str
    seed: int
    part: str
    wanted: int
    runs: int = 0
    outputs: Counter[str] = field(default_factory=Counter[str])
    false_alarms: list[str] = field(default_factory=list[str])

    def add(self, reported: list[Verdict]) -> None:
        self.runs += 1
        self.outputs.update(str(verdict.status) for verdict in reported)
        self.false_alarms += [f"{v.headline()}; {v.replay}" for v in reported if v.status.rejects]

    def text(self) -> str:
        return json.dumps(vars(self), indent=1) + "\n"

    def write(self, path: Path | None) -> None:
        """By renaming: an interrupted command leaves a whole file."""
        if path:
            partial = path.with_suffix(".partial")
            partial.write_text(self.text())
            partial.replace(path)

    def resumed(self, path: Path | None) -> Summary:
        """What `path` has of the same runs, or nothing yet."""
        if not path or not path.exists():
            return self
        read = Summary(**json.loads(path.read_text()))
        read.outputs = Counter(read.outputs)
        same = (self.operator, self.seed, self.part, self.wanted)
        if (read.operator, read.seed, read.part, read.wanted) != same:
            raise SystemExit(f"{path} is of other runs: {read.operator}, seed {read.seed}")
        return read


@cache
def kernel(spec: str) -> Adapter:
    return find(spec)


def drawn(spec: str, dtype: str, count: int, number: int) -> list[str]:
    """`count` random problems of a kernel in a format, as the suites make them."""
    adapter, found = kernel(spec), list[str]()
    bounds = adapter.operator.bounds(adapter, {"dtype": dtype}, "smoke")

    @seed(number)
    @settings(settings_for("smoke"), max_examples=count)
    @given(adapter.operator.random(adapter, dtype, bounds))
    def take(problem: Any) -> None:
        found.append(problem.to_json())

    take()
    return found


def runs(specs: Sequence[str], count: int, number: int) -> list[Run]:
    """At least so many, the same number of every kernel in each of its formats, in turns."""
    turns = [(spec, dtype) for spec in specs for dtype in kernel(spec).dtypes]
    share = -(-count // len(turns))
    of_turns = [
        [
            (spec, text, tests)
            for text, tests in zip(
                drawn(spec, d, share, number), tests_of(kernel(spec)), strict=False
            )
        ]
        for spec, d in turns
    ]
    return list(chain.from_iterable(zip(*of_turns, strict=True)))


def tests_of(adapter: Adapter) -> Iterator[Tests]:
    """What is tested, run by run: the laws of a whole layer in turns, since no oracle has one."""
    laws = applicable(adapter) if adapter.operator is LAYER else []
    return cycle([{"laws": {"law": law}} for law in laws] or [PLAIN])


def judged(run: Run) -> list[Verdict]:
    """The verdicts of one run."""
    torch.set_num_threads(1)
    spec, text, tests = run
    adapter, reported = kernel(spec), list[Verdict]()
    for name, detail in tests.items():
        judge = Judge(adapter, reported.append, name, spec=spec, published=False)
        with contextlib.suppress(Rejected, FatalRejection):
            judge(problem_from_json(text), **detail)
    return reported


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator", choices=[*HOSTS])
    parser.add_argument("--impl", nargs="+", help="conforming kernels (default: the operator's)")
    parser.add_argument("--runs", type=int, default=2000, help="at least so many (default 2000)")
    parser.add_argument("--seed", type=int, default=3, help="of the problems (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th from the K-th on, from 0")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop then (default: never)")
    parser.add_argument("--json", type=Path, help="write the summary here, or continue from it")
    given_ = parser.parse_args()
    until = time.time() + 60 * given_.minutes
    first, step = map(int, given_.part.split("/"))
    tested = runs(given_.impl or HOSTS[given_.operator].conforming, given_.runs, given_.seed)[
        first::step
    ]
    new = Summary(given_.operator, given_.seed, given_.part, len(tested))
    summary = new.resumed(given_.json)
    left = tested[summary.runs :]
    with get_context("spawn").Pool(given_.workers) as pool:
        for reported in track(pool.imap(judged, left), total=len(left)):
            summary.add(reported)
            summary.write(given_.json)
            if time.time() > until:
                break
    print(summary.text(), end="")
    return bool(summary.false_alarms)


if __name__ == "__main__":
    raise SystemExit(main())
