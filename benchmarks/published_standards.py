"""What published standards say of broken and of conforming kernels, on generic inputs and on those
of our suites, beside ours.

    python -m benchmarks.published_standards [--random 24] [--seed 5] [--json FILE]

Contract chunk64-bf16. Generic: 12 problems as others' tests draw them (random unit keys,
log-sigmoid gates, beta in (0, 1), normal values). Ours: the panel of profile smoke and random
problems. A rule catches a kernel where it fails an output of which it passes every conforming
kernel's; counted are problems. False alarms are outputs of conforming kernels that it fails. Rules
that compare errors take the baseline reference kernel for a benchmark, which is also the first of
the conforming ones.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.false_alarms import drawn
from kdaverify.budgets.ensemble import ContractOverflow, emulate
from kdaverify.budgets.standard import Reference, standard
from kdaverify.checks.compare import compare
from kdaverify.checks.published.registry import RULES, findings
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.status import RuleOutcome
from kdaverify.problems import Problem, panel
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS
from tests.checks.published.broken import BROKEN, CONFORMING, CONTRACT, IO, Kernel

OURS = "ours"
Failed = dict[str, set[str]]  # by rule, the outputs it fails


def generic() -> Iterator[Problem]:
    """Problems as others' tests draw them."""
    plain = {
        "gate": "log-sigmoid",
        "key": "random",
        "beta": "uniform",
        "state": "random",
        "value": "normal",
    }
    for T in (128, 200, 256):
        for seed in range(4):
            yield Problem.model_validate(
                {
                    "B": 1,
                    "T": T,
                    "H": 2,
                    "HV": 2,
                    "K": 64,
                    "V": 64,
                    "dtype": "bf16",
                    "seed": seed,
                    **plain,
                }
            )


def failed(kernel: Kernel, x: Inputs, held: Reference) -> Failed:
    """Which outputs of a kernel each rule fails, and we."""
    o, final = kernel(x)
    found: Failed = {name: set() for name in (OURS, *RULES)}
    for output, stored, tensor in zip(
        OUTPUTS, (IO.name, "fp32"), (o.to(IO.dtype), final.float()), strict=True
    ):
        if compare(output, tensor, held, x).status.rejects:
            found[OURS].add(output)
        packed, exact, plain = (
            x.cu_seqlens is not None,
            held.exact(output).high,
            held.budgets[output].plain,
        )
        sample = Sample(output, "bf16", stored, packed, tensor.double().contiguous(), exact, plain)
        for rule, finding in findings(sample).items():
            if finding.says is RuleOutcome.FAIL:
                found[rule].add(output)
    return found


def tally(problems: list[Problem], said: str) -> tuple[Counter[tuple[str, str]], Counter[str], int]:
    """Problems on which each rule catches each kernel, false alarms of each rule, and how many
    outputs of conforming kernels there were.
    """
    caught, alarms, conforming_outputs = Counter[tuple[str, str]](), Counter[str](), 0
    for problem in track(problems, description=said):
        x = problem.inputs()
        try:
            held = standard(x, CONTRACT, IO, emulate(x, CONTRACT, IO))
        except ContractOverflow:
            continue
        conforming = [failed(kernel, x, held) for kernel in CONFORMING.values()]
        conforming_outputs += len(conforming) * len(OUTPUTS)
        for rule in (OURS, *RULES):
            alarms[rule] += sum(len(found[rule]) for found in conforming)
        for name, kernel in BROKEN.items():
            found = failed(kernel, x, held)
            for rule in (OURS, *RULES):
                caught[rule, name] += bool(
                    found[rule] - set[str]().union(*(right[rule] for right in conforming))
                )
    return caught, alarms, conforming_outputs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--random", type=int, default=24, help="random problems beside the panel (default 24)"
    )
    parser.add_argument("--seed", type=int, default=5, help="of the random problems (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    suites = [entry.problem for entry in panel("bf16", "smoke")] + drawn(
        arguments.random, "bf16", arguments.seed
    )
    sides = {"generic": list(generic()), "our suites": suites}
    tallies = {side: tally(problems, side) for side, problems in sides.items()}
    show(tallies, {side: len(problems) for side, problems in sides.items()})
    if arguments.json:
        figures = {
            side: {
                "problems": len(sides[side]),
                "conforming_outputs": outputs,
                "false_alarms": dict(alarms),
                "caught": {
                    rule: {name: caught[rule, name] for name in BROKEN} for rule in (OURS, *RULES)
                },
            }
            for side, (caught, alarms, outputs) in tallies.items()
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def show(
    tallies: dict[str, tuple[Counter[tuple[str, str]], Counter[str], int]], problems: dict[str, int]
) -> None:
    table = Table(
        title="problems on which a broken kernel is caught: "
        + ", ".join(f"{side} ({n})" for side, n in problems.items())
    )
    table.add_column("rule", no_wrap=True)
    for name in (*BROKEN, "kernels caught", "false alarms"):
        table.add_column(name, justify="right")
    for rule in (OURS, *RULES):
        kills = [
            " ".join(str(caught[rule, name]) for caught, _, _ in tallies.values())
            for name in BROKEN
        ]
        kernels = " ".join(
            str(sum(caught[rule, name] > 0 for name in BROKEN)) for caught, _, _ in tallies.values()
        )
        alarms = " ".join(f"{alarms[rule]}/{outputs}" for _, alarms, outputs in tallies.values())
        table.add_row(rule, *kills, kernels, alarms)
    Console(width=240).print(table)


if __name__ == "__main__":
    main()
