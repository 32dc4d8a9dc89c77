"""Does the emulated contract predict a real kernel's error? Regime by regime, the kernel's rms error over the emulated one.

    python benchmarks/predicted_error.py --impl fla --tokens 256 --tokens 4096

Sizes are those of a model's head, K = V = 128, with a random initial state. The emulated error is the span of the family's members that
round to nearest; a ratio of 1.00 is a kernel that errs as the contract says it must.
"""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.family import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem
from oracles.enclosure import OUTPUTS
from oracles.recurrence import recurrence

REGIMES = (
    {"gate": "log-sigmoid"},
    {"gate": "zero"},
    {"gate": "slow"},
    {"gate": "mild"},
    {"gate": "bound-5"},
    {"gate": "bound-20"},
    {"gate": "log-uniform"},
    {"gate": "slow", "key": "coherent-0.9", "beta": "near-one"},
)
BASE = {"B": 1, "H": 2, "HV": 2, "K": 128, "V": 128, "seed": 0, "key": "random", "beta": "uniform", "state": "random", "value": "normal"}


def main(
    impl: Annotated[str, typer.Option(help="implementation, as for kdaverify verify")],
    dtype: Annotated[str, typer.Option(help="format of the problems")] = "bf16",
    tokens: Annotated[list[int] | None, typer.Option(help="lengths, repeatable")] = None,
) -> None:
    """Prints one line a regime and length; problems that the implementation does not take are named and passed over."""
    adapter = find(impl)
    if reason := adapter.missing():
        raise typer.BadParameter(reason)
    print(f"{adapter.name}, {dtype}, contract {adapter.contract(dtype).name}: rms error / emulated, relative to the output's rms")
    for T in tokens or [1024]:
        for regime in REGIMES:
            problem = Problem(**{**BASE, **regime}, T=T, dtype=dtype)  # pyright: ignore[reportArgumentType]
            reason = adapter.supports(problem)
            print(f"T {T:6d}  {'  '.join(regime.values()):34s} {reason or _measured(adapter, problem)}", flush=True)


def _measured(adapter: Adapter, problem: Problem) -> str:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = problem.inputs()
    output = adapter.forward(inputs.copied())
    received = adapter.received(inputs).on(device)
    exact = recurrence(received)
    family = emulate(received, adapter.contract(problem.dtype), FORMATS[problem.dtype]).rounded
    told = list[str]()
    for i, name in enumerate(OUTPUTS):
        size = rms(exact[i])
        found = rms(getattr(output, name).to(device).double() - exact[i]) / size
        emulated = [rms(run[i] - exact[i]) / size for run in family.values()]
        ratios = f"{found / max(emulated):.2f} to {found / min(emulated):.2f}"
        told.append(f"{name} {found:.2e}, emulated {min(emulated):.2e} to {max(emulated):.2e}, ratio {ratios}")
    return "; ".join(told)


if __name__ == "__main__":
    typer.run(main)
