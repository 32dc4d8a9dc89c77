"""Does an emulated contract err as the real kernel does? The kernel's rms error over the emulated one, outputs and gradients.

    python benchmarks/calibration.py --impl fla --impl fla:chunk_size=32 --dtype bf16 --dtype fp16 --tokens 4096 --record F.json

Sizes are those of a model's head, K = V = 128, with a random initial state. The truth is the float64 chunk form, which agrees with
certified values to 4.4e-14 (`benchmarks/gradient_agreement.py`). Every member of the contract's family is emulated, and recorded; the
ratios printed are to the one that the table names. A ratio of 1.00 is a kernel that errs as its contract says it must.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.backward import backward_family, member_gradients
from kdaverify.budgets.family import family
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem, cotangents
from oracles.autograd import ForwardOnlyError
from oracles.chunk import COMPENSATED, chunk
from oracles.chunk_backward import chunk_backward
from oracles.enclosure import OUTPUTS
from oracles.gradients import GRADIENTS, Cotangents
from oracles.inputs import Inputs
from oracles.together import cotangents_together, states_apart, together, tokens_apart

Named = dict[str, Tensor]

WITH_DECAY: Final = (
    {"gate": "log-sigmoid"},
    {"gate": "mild"},
    {"gate": "bound-5"},
    {"gate": "half-zero"},
    {"gate": "log-uniform"},
    {"gate": "bound-20"},
    {"gate": "spread"},
    {"gate": "strong-then-weak"},
    {"gate": "log-sigmoid", "key": "coherent-0.9"},
    {"gate": "mild", "key": "coherent-0.3"},
    {"gate": "log-sigmoid", "key": "zero-rows", "beta": "near-one"},
    {"gate": "mild", "key": "random", "beta": "near-one"},
)
LONG_MEMORY: Final = ({"gate": "zero"}, {"gate": "slow"}, {"gate": "slow", "key": "coherent-0.9", "beta": "near-one"})
BASE: Final = {
    "B": 1,
    "H": 2,
    "HV": 2,
    "K": 128,
    "V": 128,
    "seed": 0,
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}


@dataclass(frozen=True)
class Row:
    """One output of one problem.

    Args:
        kernel: the kernel's rms error, relative to the output's rms.
        emulated: those of the members of its family, by name.
    """

    implementation: str
    dtype: str
    contract: str
    T: int
    regime: str
    output: str
    kernel: float
    emulated: dict[str, float]


def main(
    impl: Annotated[list[str], typer.Option(help="implementation, as for kdaverify verify; repeatable")],
    dtype: Annotated[list[str] | None, typer.Option(help="format of the problems, repeatable; bf16 by default")] = None,
    tokens: Annotated[list[int] | None, typer.Option(help="lengths, repeatable; 1024 by default")] = None,
    member: Annotated[str, typer.Option(help="the member of the family that ratios are to")] = "matrix units",
    record: Annotated[Path | None, typer.Option(help="write every figure as JSON")] = None,
) -> None:
    """Prints one table for every implementation, dtype and length."""
    rows: list[Row] = []
    for spec in impl:
        adapter = find(spec)
        if reason := adapter.missing():
            raise typer.BadParameter(reason)
        for name in dtype or ["bf16"]:
            for T in tokens or [1024]:
                found = measured(adapter, name, T)
                if found:
                    shown(found, member)
                rows += found
                if record is not None:
                    record.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def measured(adapter: Adapter, dtype: str, T: int) -> list[Row]:
    """Every output of every regime that the implementation takes."""
    asked = [Problem(**{**BASE, **regime}, T=T, dtype=dtype) for regime in (*WITH_DECAY, *LONG_MEMORY)]  # pyright: ignore[reportArgumentType]
    taken = [problem for problem in asked if adapter.supports(problem) is None]
    if not taken:
        return []
    calls, given = [problem.inputs() for problem in taken], [cotangents(problem, "both") for problem in taken]
    received = [adapter.received(call) for call in calls]
    kernel = [_kernel(adapter, call, loss) for call, loss in zip(calls, given, strict=True)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, losses = together(received).on(device), cotangents_together(given, received[0]).on(device)
    exact = _apart(_truth(batch, losses), received[0], len(taken))
    sizes = [{name: rms(x) for name, x in one.items()} for one in exact]

    def errors(found: list[Named]) -> list[dict[str, float]]:
        return [
            {name: rms(x.to(device).double() - one[name]) / size[name] for name, x in named.items()}
            for named, one, size in zip(found, exact, sizes, strict=True)
        ]

    ours, theirs = errors(kernel), dict[str, list[dict[str, float]]]()
    for name, outputs in _emulated(adapter, dtype, batch, losses):
        found = errors(_apart(outputs, received[0], len(taken)))
        theirs[name] = [a | b for a, b in zip(theirs.get(name, [{}] * len(taken)), found, strict=True)]
        gc.collect()
    contract = adapter.contract(dtype).name
    return [
        Row(
            adapter.name,
            dtype,
            contract,
            T,
            regime_of(problem),
            output,
            error,
            {m: them[i][output] for m, them in theirs.items() if output in them[i]},
        )
        for i, problem in enumerate(taken)
        for output, error in ours[i].items()
    ]


def regime_of(problem: Problem) -> str:
    return " ".join(
        (problem.gate, *([problem.key] if problem.key != "random" else []), *([problem.beta] if problem.beta != "uniform" else []))
    )


def _kernel(adapter: Adapter, inputs: Inputs, loss: Cotangents) -> Named:
    output = adapter.forward(inputs.copied())
    found: dict[str, Any] = {"o": output.o, "final_state": output.final_state}
    with suppress(ForwardOnlyError):
        found |= adapter.gradients(inputs.copied(), loss).named()
    return {name: x.detach().cpu() for name, x in found.items()}


def _truth(batch: Inputs, losses: Cotangents) -> Named:
    o, final = chunk(batch, stages=COMPENSATED)
    return {"o": o, "final_state": final, **chunk_backward(batch, losses, stages=COMPENSATED).named()}


def _emulated(adapter: Adapter, dtype: str, batch: Inputs, losses: Cotangents) -> Iterator[tuple[str, Named]]:
    contract, back, io = adapter.contract(dtype), adapter.backward_contract(dtype), FORMATS[dtype]
    for one in track(family(contract, io), description=contract.name, transient=True):
        o, final = one.run(batch)
        yield one.name, {"o": o, "final_state": final}
    for one in track(backward_family(back, io), description=f"{back.name}, backward", transient=True):
        yield one.name, member_gradients(one, batch, losses).named()


def _apart(found: Named, one: Inputs, number: int) -> list[Named]:
    cut = {
        name: (states_apart if name in ("final_state", "d_initial_state") else tokens_apart)(x, one, number) for name, x in found.items()
    }
    return [dict(zip(cut, pieces, strict=True)) for pieces in zip(*cut.values(), strict=True)]


def shown(rows: list[Row], member: str) -> None:
    """One table: a line a regime, a column an output."""
    first = rows[0]
    of = {(row.regime, row.output): row for row in rows}
    outputs = [name for name in (*OUTPUTS, *GRADIENTS) if any(name == output for _, output in of)]
    table = Table(
        title=f"{first.implementation}, {first.dtype}, T = {first.T}: {first.contract}, ratios to {member!r}", title_justify="left"
    )
    for heading in ("regime", *outputs):
        table.add_column(heading)
    for regime in dict.fromkeys(row.regime for row in rows):
        table.add_row(regime, *(_ratio(of.get((regime, output)), member) for output in outputs))
    Console(width=140).print(table)


def _ratio(row: Row | None, member: str) -> str:
    return "" if row is None or member not in row.emulated else f"{row.kernel / row.emulated[member]:.3f}"


if __name__ == "__main__":
    typer.run(main)
