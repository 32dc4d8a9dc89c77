"""How often a conforming kernel is rejected: the other half of a harness's worth.

    python benchmarks/false_alarms.py --problems 1000 --json reports/false_alarms.json

Draws problems as the suites do and judges on each `eager`, `eager-recurrent`, and a conforming
kernel no tolerance was made of (sums taken backwards), under the declared contracts and under one
of 24, 40 or 48-token chunks. What is over its tolerance is tested again at 200 fresh seeds, as in a
session; if it stays rejected it is a false alarm. Each reference kernel is also held against the
tolerance of the others: a rejection there is no false alarm, it shows what the ensemble would
reject without that member. Prints runs, rejections with their problems, and the worst ratio met.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, seed, settings
from rich.progress import track
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference, standard
from kdaverify.checks.borderline import RetestFinding, is_near
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.recheck import recheck
from kdaverify.faults.conforming_kernels import backwards
from kdaverify.problems import Problem, problems
from kdaverify.problems.profiles import cost_of, settings_for
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

DTYPES = ("fp64", "fp32", "bf16", "fp16")
HELD_OUT_CHUNKS = (24, 40, 48)
LEFT_OUT = "left out"
# kernel, dtype, worst ratio, problem, what fresh seeds found of a ratio over 1
Row = tuple[str, str, float, str, str]
Kernel = Callable[[Inputs], tuple[Tensor, Tensor]]


def drawn(count: int, dtype: str, number: int, max_cost: float | None = None) -> list[Problem]:
    """`count` problems of a dtype, as the suites draw them."""
    found: list[Problem] = []

    @seed(number)
    @settings(settings_for("smoke"), max_examples=count)
    @given(problems(dtype=dtype, max_cost=cost_of("smoke") if max_cost is None else max_cost))
    def take(problem: Problem) -> None:
        found.append(problem)

    take()
    return found


def backward(contract: Contract, dtype: str) -> Emulator:
    return Emulator("held out: backward sums", contract, FORMATS[dtype], dot=backwards)


def judge(problem: Problem) -> list[Row]:
    """Every conforming kernel on one problem, each under its own contract."""
    torch.set_num_threads(1)
    accumulate = "fp64" if problem.dtype == "fp64" else "fp32"
    size = HELD_OUT_CHUNKS[problem.seed % len(HELD_OUT_CHUNKS)]
    return [
        *contenders(problem, f"chunk64-{problem.dtype}", "eager"),
        *contenders(problem, f"recurrent-{accumulate}", "eager-recurrent"),
        *contenders(problem, f"chunk{size}-{problem.dtype}", None),
    ]


def contenders(problem: Problem, preset: str, shipped: str | None) -> list[Row]:
    inputs, io, contract = problem.inputs(), FORMATS[problem.dtype], contract_from_name(preset)
    emulation = emulate(inputs, contract, io)
    held = standard(inputs, contract, io, emulation)
    outsider = backward(contract, problem.dtype)
    kernels: dict[str, Kernel] = {f"{preset}, {outsider.name}": outsider.run} | (
        {} if shipped is None else {shipped: forward_of(shipped)}
    )
    rows: list[tuple[str, float, str]] = []
    for name, run in kernels.items():
        found = compared(run(inputs), held, inputs)
        rows.append((name, largest(found), retested(found, run, contract, problem)))
    if shipped is not None:
        for left_out in (
            member.name for member in ensemble(contract, io) if member.contract == contract
        ):
            others = {name: run for name, run in emulation.rounded.items() if name != left_out}
            held = standard(inputs, contract, io, replace(emulation, rounded=others))
            rows.append(
                (
                    f"{preset}, {LEFT_OUT}: {left_out}",
                    largest(compared(emulation.rounded[left_out], held, inputs)),
                    "",
                )
            )
    return [
        (name, problem.dtype, ratio, problem.to_json(), finding) for name, ratio, finding in rows
    ]


def forward_of(shipped: str) -> Kernel:
    def run(inputs: Inputs) -> tuple[Tensor, Tensor]:
        output = find(shipped).forward(inputs)
        return output.o, output.final_state

    return run


def compared(run: tuple[Tensor, Tensor], held: Reference, inputs: Inputs) -> list[Comparison]:
    return [compare(name, tensor, held, inputs) for name, tensor in zip(OUTPUTS, run, strict=True)]


def largest(found: list[Comparison]) -> float:
    return max(one.ratio for one in found)


def retested(found: list[Comparison], run: Kernel, contract: Contract, problem: Problem) -> str:
    """What fresh seeds find of the outputs over their tolerance: CONFIRMED for one that no fresh
    seed can change; "" if there are none.
    """

    def outcomes(again: Problem) -> list[Outcome]:
        x, io = again.inputs(), FORMATS[again.dtype]
        held = standard(x, contract, io, emulate(x, contract, io))
        return [Outcome(c.output, c.status, str(c), c) for c in compared(run(x), held, x)]

    wrong = [one for one in found if one.status.rejects]
    if not wrong:
        return ""
    if not all(is_near(one.status, one.statistic, one.ratio) for one in wrong):
        return str(RetestFinding.CONFIRMED)
    findings = {
        reported.finding
        for reported in recheck(outcomes, problem, [one.output for one in wrong]).values()
    }
    return str(
        RetestFinding.PASSED_ON_RETEST
        if findings == {RetestFinding.PASSED_ON_RETEST}
        else RetestFinding.CONFIRMED
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--problems",
        type=int,
        default=1000,
        help="problems in all, a quarter per dtype (default 1000)",
    )
    parser.add_argument("--seed", type=int, default=2, help="of the random problems (default 2)")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="processes (default 2); the result does not depend on it",
    )
    parser.add_argument("--json", type=Path, help="write the summary here")
    arguments = parser.parse_args()
    case_tested = [
        p
        for dtype in DTYPES
        for p in drawn(arguments.problems // len(DTYPES), dtype, arguments.seed)
    ]
    alarms: list[Row] = []
    counts, ratios = Counter[str](), defaultdict[str, float](float)
    with get_context("spawn").Pool(arguments.workers) as pool:
        for rows in track(
            pool.imap(judge, case_tested, chunksize=4),
            total=len(case_tested),
            description="judging conforming kernels",
        ):
            for row in rows:
                counts[row[0]] += 1
                ratios[row[0]] = max(ratios[row[0]], row[2])
                if not row[2] <= 1:
                    alarms.append(row)
    summary = {
        "problems": len(case_tested),
        "seed": arguments.seed,
        "conforming_runs": sum(count for name, count in counts.items() if LEFT_OUT not in name),
        "over_tolerance_once": sum(LEFT_OUT not in row[0] for row in alarms),
        "false_alarms": sum(row[4] == RetestFinding.CONFIRMED for row in alarms),
        "left_out_runs": sum(count for name, count in counts.items() if LEFT_OUT in name),
        "left_out_rejected": sum(LEFT_OUT in row[0] for row in alarms),
        "worst_ratio": dict(sorted(ratios.items())),
    }
    show(summary, counts, alarms)
    if arguments.json:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")


def show(summary: dict[str, Any], counts: Counter[str], rejected: list[Row]) -> None:
    for name, ratio in summary["worst_ratio"].items():
        print(f"{counts[name]:6d} runs, worst {ratio:.3f}x tolerance: {name}")
    for name, dtype, ratio, problem, finding in rejected:
        print(
            f"REJECTED at {ratio:.3f}x tolerance, {dtype}, {name}, {finding or 'not tested again'}:"
            f" {problem}"
        )
    print(
        "{problems} problems: {false_alarms} false alarms in {conforming_runs} conforming runs,"
        " {over_tolerance_once} over tolerance once".format_map(summary)
    )
    print(
        "{left_out_rejected} of {left_out_runs} runs of a reference kernel against the tolerance of"
        " the others are rejected".format_map(summary)
    )


if __name__ == "__main__":
    main()
