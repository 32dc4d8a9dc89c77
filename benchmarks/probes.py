"""How far every exactness probe separates its faults from a right kernel.

    python -m benchmarks.probes --presets chunk64-bf16,chunk64-fp32,recurrent-fp32

Runs the baseline reference kernel of a contract and the planted faults of the tests on every probe,
in every format the contract is for, and prints the worst figure of both as a fraction of what is
allowed, and how far they lie apart. Exit code 1 where a fault lies within ten times what the right
kernel shows, or within what is allowed, or a right kernel is rejected; the last line counts those
within ten times what is allowed too.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kdaverify.budgets.contract import contract_from_name
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.probes import probes
from kdaverify.checks.status import Status
from kdaverify.problems.probes import PROBES, Probe
from tests.checks.probe_faults import FAULTS, Fault, Kernel, Planted, conforming

APART = 10.0
PRESETS = "chunk64-fp64,chunk64-fp32,chunk64-bf16,chunk64-fp16,recurrent-fp32,recurrent-fp64"


def formats(preset: str) -> tuple[str, ...]:
    """The formats of inputs that kernels of a preset take here."""
    contract = contract_from_name(preset)
    if contract.form == "recurrent":
        return ("fp64",) if contract.operands.name == "fp64" else ("fp32", "bf16", "fp16")
    return ("fp32",) if contract.operands.name == "tf32" else (contract.operands.name,)


def tested(probe: Probe, preset: str, dtype: str, kernel: Kernel) -> list[Outcome]:
    """What a kernel that declares `preset` comes to on a probe."""
    return probes(
        Planted(contract_from_name(preset), dtype, kernel),
        probe.problem.replace(dtype=dtype),
        probe=probe.name,
    )


def worst(found: list[Outcome]) -> tuple[float, str]:
    """The largest figure, and what it is of;
    inf where something was so wrong that there is none.
    """
    return max(_figure(outcome) for outcome in found)


def _figure(outcome: Outcome) -> tuple[float, str]:
    if outcome.status is Status.ERROR:
        raise RuntimeError(f"a planted kernel was not judged: {outcome.message}")
    about = outcome.status if outcome.comparison is None else outcome.comparison.statistic
    return math.inf if outcome.ratio is None else outcome.ratio, f"{outcome.output} {about}"


def rows(probe: Probe, preset: str, dtype: str) -> list[tuple[Fault, float, float, str]]:
    """Every fault that kernels of the preset can have: the right kernel's figure, the faulty one's,
    and what that is of.
    """
    right, _ = worst(tested(probe, preset, dtype, conforming))
    faults = [
        fault for fault in FAULTS[probe.name] if contract_from_name(preset).form in fault.forms
    ]
    return [(fault, right, *worst(tested(probe, preset, dtype, fault.kernel))) for fault in faults]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--presets", default=PRESETS, help=f"contracts, by comma (default {PRESETS})"
    )
    parser.add_argument("--probes", default=",".join(PROBES), help="names, by comma (default all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "probe",
        "fault",
        "contract",
        "dtype",
        "right / tolerance",
        "faulty / tolerance",
        "of",
        "apart",
    )
    missed, within = 0, 0
    cases = [
        (PROBES[name], preset, dtype)
        for name in arguments.probes.split(",")
        for preset in arguments.presets.split(",")
        for dtype in formats(preset)
        if dtype in PROBES[name].dtypes
    ]
    for probe, preset, dtype in track(cases, description="probing"):
        for fault, right, wrong, of in rows(probe, preset, dtype):
            apart = wrong / right if right else math.inf
            reported = right <= 1 < wrong and apart >= APART
            missed += not reported
            within += wrong < APART
            figures = (f"{right:.2g}", f"{wrong:.2g}", of, f"{apart:.2g}")
            table.add_row(
                probe.name,
                fault.name,
                preset,
                dtype,
                *figures,
                style=None if reported else "bold red",
            )
    Console(width=160).print(table)
    print(
        f"{len(table.rows)} faults, {missed} of them not distinguished from a right kernel by"
        f" {APART:g} times"
    )
    print(f"{within} faults lie within {APART:g} times what is allowed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
