"""How often a conforming kernel is rejected by the tests of a backward.

    python -m benchmarks.gradient_laws --problems 100 --impl eager --dtypes bf16,fp16,fp32
    python -m benchmarks.gradient_laws --only gradients --problems 60 --impl eager-recurrent

Draws problems as the suites do and prints, for each check and format: cases, rejections with their
problems, skips, and the largest and the median fraction of the tolerance. A rejection of `eager` is
a false alarm.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import given, seed, settings
from rich.progress import track

from benchmarks.false_alarms import drawn
from kdaverify.adapters import find
from kdaverify.checks.cotangent_linearity import LAWS
from kdaverify.checks.jacobian import MOST_ROWS, rows
from kdaverify.checks.properties import check
from kdaverify.problems import Problem, problems
from kdaverify.problems.cotangents import EXPONENTS, OF
from kdaverify.problems.profiles import settings_for
from kdaverify.problems.strategies import TINIEST

SMALL = 0.0125
GradientCases = tuple[str, Callable[[str, int], list[Problem]], dict[str, Any]]


def tiniest(dtype: str, count: int) -> list[Problem]:
    """Problems with few enough output elements to test each."""
    found: list[Problem] = []

    @seed(0)
    @settings(settings_for("smoke"), max_examples=count)
    @given(problems(dtype=dtype, **TINIEST).filter(lambda problem: rows(problem) <= MOST_ROWS))
    def take(problem: Problem) -> None:
        found.append(problem)

    take()
    return found


def small(dtype: str, count: int) -> list[Problem]:
    return drawn(count, dtype, 0, SMALL)


def tested(dtype: str) -> Iterator[GradientCases]:
    for of in OF:
        yield "gradients", small, {"of": of}
    yield "self_consistency", small, {}
    yield "jacobian", tiniest, {}
    for law in LAWS:
        for exponent in EXPONENTS[dtype][1:] if law == "power" else (0,):
            yield "cotangent_linearity", small, {"law": law, "exponent": exponent}


def report(name: str, dtype: str, case: GradientCases, count: int) -> None:
    """One line for one check, and one for each rejection."""
    what, draw, detail = case
    adapter = find(name)
    cases = [
        (problem, check(what, adapter, problem, detail))
        for problem in track(draw(dtype, count), what)
    ]
    ratios = [
        outcome.comparison.ratio for _, found in cases for outcome in found if outcome.comparison
    ]
    wrong = [
        (problem, outcome)
        for problem, found in cases
        for outcome in found
        if outcome.status.rejects
    ]
    skips = sum(not outcome.status.judged for _, found in cases for outcome in found)
    size = (
        f", largest {max(ratios):.3g}, median {statistics.median(ratios):.3g} of the tolerance"
        if ratios
        else ""
    )
    print(
        f"{name} {dtype} {what} {detail or ''}: {len(cases)} problems, {len(wrong)} rejections,"
        f" {skips} skips{size}",
        flush=True,
    )
    for problem, outcome in wrong:
        print(f"  {outcome.status} {outcome.message.splitlines()[0]}\n  {problem.to_json()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--impl", default="eager")
    parser.add_argument("--dtypes", default="bf16,fp16,fp32")
    parser.add_argument("--only", default="", help="one check, by name")
    reported = parser.parse_args()
    torch.set_num_threads(1)
    for dtype in reported.dtypes.split(","):
        for case in (case for case in tested(dtype) if reported.only in ("", case[0])):
            report(reported.impl, dtype, case, reported.problems)
