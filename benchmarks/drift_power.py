"""How often drift distinguishes a carried state of few bits from a wide one, and how often it
rejects a conforming kernel.

    python -m benchmarks.drift_power --sequences 600

Sequences are measured in batches and judged in groups of six, as the suite does. Of every kernel:
the slope of its state's error beside that of conforming kernels, its bias, the tolerance it uses,
and how many groups each rule rejects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import torch
import typer

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.drift import Curve, carriers
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.drift import measure
from kdaverify.checks.growth import Growth
from kdaverify.problems.drift_probes import PROBES, drift_problem
from tests.checks.drifting import Member, decay_in_bf16, state_in_bf16

BATCH = 60
GROUP = 6
RULES = ("level", "slope", "bias")


def contenders(dtype: str) -> dict[str, Adapter]:
    """Conforming kernels, and in bf16 the two whose carried state underflows, by name."""
    members = carriers(contract_from_name(f"chunk64-{dtype}"), FORMATS[dtype])[1:]
    conforming = {name: find(name) for name in ("eager", "eager-recurrent")} | {
        member.name: Member(member, dtype) for member in members
    }
    return (
        conforming | {"FAULT state in bf16": state_in_bf16, "FAULT decay in bf16": decay_in_bf16}
        if dtype == "bf16"
        else conforming
    )


def main(
    sequences: Annotated[int, typer.Option(help="of each kernel; a multiple of 60")] = 600,
    tokens: Annotated[int, typer.Option(help="of the longest run")] = 4096,
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32")] = "bf16",
    probe: Annotated[str, typer.Option(help=", ".join(PROBES))] = "memory",
    only: Annotated[str, typer.Option(help="kernels whose name contains this")] = "",
) -> None:
    """Prints two lines a kernel, one for each output."""
    torch.set_num_threads(1)
    print(
        f"{probe}, {dtype}, {tokens} tokens, groups of {GROUP} sequences: rejected by level / slope"
        " / bias"
    )
    for name, adapter in contenders(dtype).items():
        if only in name:
            _report(
                name,
                [
                    growths
                    for seed in range(sequences // BATCH)
                    for growths in _groups(adapter, probe, dtype, tokens, seed)
                ],
            )


def _groups(
    adapter: Adapter, probe: str, dtype: str, tokens: int, seed: int
) -> Iterator[tuple[Growth, ...]]:
    found = measure(
        adapter, drift_problem(probe, dtype, tokens=tokens, samples=BATCH, seed=seed), "uncut"
    ).growths
    for first in range(0, BATCH, GROUP):
        yield tuple(_only(growth, slice(first, first + GROUP)) for growth in found)


def _only(growth: Growth, samples: slice) -> Growth:
    def cut(curve: Curve) -> Curve:
        return replace(curve, rms=curve.rms[samples], mean=curve.mean[samples])

    return replace(
        growth,
        kernel=cut(growth.kernel),
        conforming=tuple(cut(curve) for curve in growth.conforming),
    )


def _report(name: str, groups: list[tuple[Growth, ...]]) -> None:
    for growths in zip(*groups, strict=True):
        ratios = [growth.ratios for growth in growths]
        rejected = "/".join(str(sum(found[rule] > 1 for found in ratios)) for rule in RULES)
        alarms = sum(max(found.values()) > 1 for found in ratios)
        slopes = sorted(growth.slope for growth in growths)
        used, bias = (
            sum(values) / len(values)
            for values in ([float(g.used[-1]) for g in growths], [g.bias for g in growths])
        )
        print(
            f"{name:46s} {growths[0].output:12s} slope {sum(slopes) / len(slopes):+.2f}"
            f" ({slopes[0]:+.2f} to {slopes[-1]:+.2f}), bias {bias:.2f}, {used:.2f}x tolerance,"
            f" rejected {alarms} of {len(growths)} ({rejected})",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
