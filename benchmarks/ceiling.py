"""How sharp the proven error bound is, and whether it holds: bound over the errors that conforming
kernels were seen to make, by contract and regime.

    python -m benchmarks.ceiling --problems 30 --json reports/ceiling.json

Draws problems as the suites do and runs every member of every contract's ensemble, and its draws.
Per problem and output three figures: `closest` is the least, over all elements, of ceiling / worst
error seen; `typical` is the median of the same; `signal` is the median of ceiling / rms of the
output: above 1 the ceiling knows nothing of an element. A run above the ceiling is an error in the
ceiling.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import torch
import typer
from rich.progress import track

from benchmarks.false_alarms import drawn
from kdaverify.budgets.ceiling import Ceilings
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.ensemble import ContractOverflow, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem
from oracles.cache import cache_in
from oracles.certified import certify
from oracles.enclosure import CertifiedOutputs
from oracles.file_cache import default_folder
from oracles.inputs import Inputs
from oracles.running_error import enclosed

CONTRACTS = (
    ("chunk64-bf16", "bf16"),
    ("chunk64-fp16", "fp16"),
    ("chunk64-fp32", "fp32"),
    ("chunk64-fp64", "fp64"),
    ("recurrent-fp32", "bf16"),
    ("recurrent-fp32", "fp32"),
    ("recurrent-fp64", "fp64"),
    ("chunk64-tf32", "fp32"),
    ("chunk64-bf16-tf32solve", "bf16"),
    ("chunk64-bf16-anchored-tf32solve", "bf16"),
    ("chunk64-bf16-fp32solve", "bf16"),
    ("chunk64-bf16-tf32solve-softplus", "bf16"),
    ("chunk16-bf16-fp32factors", "bf16"),
    ("chunk16-bf16-bf16factors-bf16carry", "bf16"),
)


@dataclass(frozen=True)
class Row:
    """One output of one problem."""

    contract: str
    dtype: str
    gate: str
    output: str
    runs: int
    above: int
    closest: float
    typical: float
    signal: float
    problem: str


def exact(inputs: Inputs, contract: Contract) -> CertifiedOutputs:
    """Truth far sharper than the contract."""
    if contract.accumulate.name == "fp64":
        return certify(
            inputs, accept=lambda _: True, extra_bits=30, cache=cache_in(default_folder())
        )
    return enclosed(inputs)


def rows(problem: Problem, contract: Contract) -> Iterator[Row]:
    inputs, io = problem.inputs(), FORMATS[problem.dtype]
    try:
        emulation = emulate(inputs, contract, io)
    except ContractOverflow:
        return
    runs = [*emulation.rounded.values(), *emulation.drawn]
    bounds = Ceilings(inputs, contract, io).every
    for i, (name, truth) in enumerate(exact(inputs, contract).named().items()):
        if not truth.high.numel() or not bool(truth.high.any()):
            continue
        errors = torch.stack([truth.error(run[i]).abs() - truth.radius for run in runs]).clamp(
            min=0.0
        )
        worst, bound = errors.amax(0), bounds[name]
        seen = worst > 0
        ratios = bound[seen] / worst[seen]
        yield Row(
            contract=contract.name,
            dtype=problem.dtype,
            gate=problem.gate,
            output=name,
            runs=len(runs),
            above=int((errors > bound).flatten(1).any(1).sum()),
            closest=float(ratios.min()) if ratios.numel() else float("inf"),
            typical=float(ratios.median()) if ratios.numel() else float("inf"),
            signal=float(bound.median()) / rms(truth.high),
            problem=problem.to_json(),
        )


def show(title: str, found: list[Row]) -> None:
    """One line of medians and quantiles."""

    def spread(name: str) -> str:
        values = sorted(x for x in (getattr(row, name) for row in found) if x != float("inf"))
        cut = quantiles(values, n=10, method="inclusive") if len(values) > 1 else [*values] * 9
        return (
            f"{name} {median(values):9.3g} ({cut[0]:.3g} to {cut[-1]:.3g})"
            if values
            else f"{name} nothing missed"
        )

    runs, above = sum(row.runs for row in found), sum(row.above for row in found)
    print(
        f"{title:44s} {runs:6d} runs, {above} above; {spread('closest')}; {spread('typical')};"
        f" {spread('signal')}"
    )


def main(
    problems: Annotated[int, typer.Option(help="problems per contract")] = 30,
    seed: Annotated[int, typer.Option(help="of the random problems")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="write every row here")] = None,
) -> None:
    """Prints medians and the span of the middle 80 %, by contract, then by regime in 16 bits, in
    fp32 and in fp64.
    """
    torch.set_num_threads(1)
    tested = [
        (problem, contract_from_name(name))
        for name, dtype in CONTRACTS
        for problem in drawn(problems, dtype, seed)
    ]
    found = [
        row
        for problem, contract in track(tested, "bounding conforming kernels")
        for row in rows(problem, contract)
    ]
    groups = defaultdict[str, list[Row]](list)
    for row in found:
        groups[f"{row.contract}, {row.dtype}, {row.output}"].append(row)
    for row in found:
        accumulates = contract_from_name(row.contract).accumulate.name
        narrow = contract_from_name(row.contract).operands.precision <= 11
        groups[f"{'16 bits' if narrow else accumulates}, gate {row.gate}"].append(row)
    for title, group in groups.items():
        show(title, group)
    for row in found:
        if row.above:
            print(
                f"ABOVE: {row.above} of {row.runs} runs, {row.contract}, {row.output}:"
                f" {row.problem}"
            )
    print(
        f"{len(tested)} problems, {sum(row.runs for row in found)} outputs,"
        f" {sum(row.above for row in found)} above the ceiling"
    )
    if output:
        output.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
