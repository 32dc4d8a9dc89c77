"""False alarms and undetected faults on the operations beside the kernel: gate activations, beta
and l2norm.

    python -m benchmarks.activation_alarms --problems 360

Conforming kernels (torch in fp32; units of accelerators that leave bits out and flush, with sums in
blocks; formulas that keep what is small beside 1) and the planted faults of the tests are judged on
problems sampled as in the suite. Prints the worst ratio of every conforming kernel and how
many problems of its operation show each fault; exit code 1 where a conforming kernel is rejected or
a fault never is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict

from hypothesis import given, seed, settings
from rich.progress import track

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.operators.pointwise.cases import activation_problems
from kdaverify.operators.pointwise.check import activations
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.problems import settings_for
from oracles.pointwise.operations import OPERATIONS
from tests.operators.pointwise.activated import ACCELERATOR, KEEPER
from tests.operators.pointwise.activation_faults import FAULTS

DTYPES = ("fp32", "bf16", "fp16")
CONFORMING: tuple[Adapter, ...] = (EAGER, ACCELERATOR, KEEPER)


def drawn(count: int, op: str, dtype: str, start: int) -> list[ActivationProblem]:
    """`count` problems as a suite would draw them from seed `start`."""
    found: list[ActivationProblem] = []

    @seed(start)
    @settings(settings_for("smoke"), max_examples=count)
    @given(activation_problems(op, dtype))  # pyright: ignore[reportArgumentType]
    def collect(problem: ActivationProblem) -> None:
        found.append(problem)

    collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=360, help="problems in all (default 360)")
    parser.add_argument("--seed", type=int, default=2, help="of the random problems (default 2)")
    arguments = parser.parse_args()
    share = arguments.problems // (len(OPERATIONS) * len(DTYPES))
    tested = [
        problem
        for op in OPERATIONS
        for dtype in DTYPES
        for problem in drawn(share, op, dtype, arguments.seed)
    ]
    worst, seen, of_op = (
        defaultdict[str, float](float),
        Counter[str](),
        Counter(problem.op for problem in tested),
    )
    alarms: list[str] = []
    for problem in track(tested, description="judging activations"):
        for conforming in CONFORMING:
            for outcome in activations(conforming, problem):
                ratio = outcome.comparison.ratio if outcome.comparison else 0.0
                key = f"{conforming.name}, {problem.op} {outcome.output}"
                worst[key] = max(worst[key], ratio)
                if outcome.status.rejects:
                    alarms.append(f"{key}: {outcome.message}\n  {problem.to_json()}")
        for name, (fault, op, _) in FAULTS.items():
            if op == problem.op:
                seen[name] += any(outcome.status.rejects for outcome in activations(fault, problem))
    for key, ratio in worst.items():
        print(f"{ratio:.3f} of bound: {key}")
    for name, (_, op, _) in FAULTS.items():
        print(f"{seen[name]:4d} of {of_op[op]} problems show: {name}")
    print(*alarms, sep="\n")
    print(
        f"{len(tested)} problems, {len(tested) * len(CONFORMING)} conforming runs,"
        f" {len(alarms)} false alarms"
    )
    sys.exit(bool(alarms) or not all(seen[name] for name in FAULTS))


if __name__ == "__main__":
    main()
