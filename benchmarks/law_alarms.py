"""How often a conforming kernel is rejected by a law, and what a law costs.

    python -m benchmarks.law_alarms --problems 10 --impl eager --dtypes bf16,fp16,fp32

Draws problems as the suite does and prints, for each law: cases, rejections with their problems,
skips, the largest fraction of a tolerance, and processor seconds a case. A rejection of `eager` is
a false alarm.
"""

from __future__ import annotations

import argparse
import time

import torch
from hypothesis import given, seed, settings
from rich.progress import track

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter
from kdaverify.checks.laws.law import Law, law_problems
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.problems import Problem
from kdaverify.problems.profiles import settings_for


def drawn(
    law: Law, adapter: Adapter, dtype: str, count: int, *, max_cost: float, number: int
) -> list[Problem]:
    found: list[Problem] = []

    @seed(number)
    @settings(settings_for("smoke", fixed=True), max_examples=count)
    @given(
        law_problems(
            law,
            adapter,
            dtype,
            {"max_cost": max_cost, "widths": adapter.widths, "domain": adapter.domain},
        )
    )
    def take(problem: Problem) -> None:
        found.append(problem)

    take()
    return found


def report(name: str, tested: list[tuple[Problem, list[Outcome]]], seconds: float) -> int:
    """One line for a law, and one for each rejection; the cases judged."""
    found = [(problem, outcome) for problem, reported in tested for outcome in reported]
    ratios = [outcome.comparison.ratio for _, outcome in found if outcome.comparison]
    wrong = [(problem, outcome) for problem, outcome in found if outcome.status.rejects]
    skips = sum(not outcome.status.judged for _, outcome in found)
    size = f", largest {max(ratios):.3g} of the tolerance" if ratios else ""
    print(
        f"{name}: {len(tested)} cases, {len(wrong)} rejections, {skips} skips{size},"
        f" {seconds / len(tested):.3f} s a case",
        flush=True,
    )
    for problem, outcome in wrong:
        print(f"  {outcome.status} {outcome.message}\n  {problem.to_json()}", flush=True)
    return len(tested) - skips


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=10, help="of each law and format")
    parser.add_argument("--impl", default="eager")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-cost", type=float, default=0.1)
    reported = parser.parse_args()
    torch.set_num_threads(1)
    kernel, judged = find(reported.impl), 0
    for name, law in LAWS.items():
        dtypes = reported.dtypes.split(",") if reported.dtypes else kernel.dtypes
        cases = [
            p
            for dtype in dtypes
            for p in drawn(
                law,
                kernel,
                dtype,
                reported.problems,
                max_cost=reported.max_cost,
                number=reported.seed,
            )
        ]
        started = time.process_time()
        tested = [
            (problem, check("laws", kernel, problem, {"law": name}))
            for problem in track(cases, name, transient=True)
        ]
        judged += report(f"{reported.impl} {name}", tested, time.process_time() - started)
    print(f"{reported.impl}: {judged} cases judged", flush=True)
