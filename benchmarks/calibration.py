"""Does an emulated contract err as the real kernel does? The kernel's rms error over the emulated
one, outputs and gradients.

    python -m benchmarks.calibration --impl fla --impl fla:chunk_size=32 --dtype bf16 --dtype fp16
    --tokens 4096 --json F.json python -m benchmarks.calibration --read F.json

Sizes are those of a model's head, K = V = 128 unless `--width` says another, with a random initial
state. The truth is the
float64 chunk form, which agrees with certified values to 4.4e-14
(`benchmarks/gradient_agreement.py`). Ratios are to the kernel of the contract's ensemble that
decides as the kernel's hardware and source do, named under each table: 1.00 is a kernel that errs
as its contract says it must.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.backward import backward_members, member_gradients
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem, cotangents
from oracles.autograd import ForwardOnlyError
from oracles.chunk import COMPENSATED, chunk
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS
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
LONG_MEMORY: Final = (
    {"gate": "zero"},
    {"gate": "slow"},
    {"gate": "slow", "key": "coherent-0.9", "beta": "near-one"},
)
BASE: Final = {
    "B": 1,
    "H": 2,
    "HV": 2,
    "seed": 0,
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}


REGIMES: Final = (*WITH_DECAY, *LONG_MEMORY)
LONG: Final = ("zero", "slow", "slow coherent-0.9 near-one")
WITHIN, WITHIN_LONG = (0.95, 1.05), (0.9, 1.1)
LIKELY: Final = (
    "matrix units that truncate, products of states summed in storage",
    "matrix units that truncate, diagonal on vector units",
    "factored decays, beta on the columns, subnormals flushed",
    "matrix units",
    "ordered sums, base-2 exponential",
)
"""What the kernels at hand do, the rarest first: an NVIDIA GPU's units truncate fp32 operands to
TF32."""


@dataclass(frozen=True)
class Row:
    """One output of one problem.

    Args:
        member: a kernel of the contract's ensemble.
        kernel, emulated: the rms error of either, relative to the output's rms.
    """

    implementation: str
    dtype: str
    T: int
    contract: str
    member: str
    regime: str
    output: str
    kernel: float
    emulated: float


def main(
    *,
    impl: Annotated[
        list[str] | None, typer.Option(help="implementation, as for kdaverify verify; repeatable")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="format of the problems, repeatable; bf16 by default")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(help="lengths, repeatable; 1024 by default")
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(help="reference kernel, repeatable: ratios are to the first that exists"),
    ] = None,
    width: Annotated[int, typer.Option(help="K and V")] = 128,
    tile: Annotated[
        int | None,
        typer.Option(help="sum products of states as Triton's interpreter does, in such tiles"),
    ] = None,
    record: Annotated[Path | None, typer.Option("--json", help="write every figure")] = None,
    read: Annotated[
        list[Path] | None, typer.Option(help="figures to sum up instead, repeatable")
    ] = None,
) -> None:
    """Prints one table for every implementation, dtype and length,
    and a line of each at the end.
    """
    rows = [Row(**row) for path in read or [] for row in json.loads(path.read_text())]
    likely = tuple(member or LIKELY)
    for spec in impl or []:
        adapter = find(spec)
        if reason := adapter.missing():
            raise typer.BadParameter(reason)
        for name in dtype or ["bf16"]:
            for T in tokens or [1024]:
                found = Calibration(adapter, name, likely, width, tile).rows(T)
                rows += found
                if found:
                    shown(found)
                if record is not None:
                    record.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    summed_up(rows)


@dataclass(frozen=True)
class Calibration:
    """One implementation in one dtype.

    Args:
        likely: reference kernels: the first that there is is emulated, or the ensemble's
            plainest.
        width: K and V.
        tile: side of the tiles of a state whose products are summed in the storage format; None as
            the reference kernel sums them.
    """

    adapter: Adapter
    dtype: str
    likely: tuple[str, ...]
    width: int = 128
    tile: int | None = None

    def rows(self, T: int) -> list[Row]:
        """Every output of every regime that the implementation takes."""
        domain, sizes = self.adapter.domain, {"K": self.width, "V": self.width, "T": T}
        tested = [
            Problem.model_validate(
                {**BASE, **regime, **sizes, "gates": domain.gates, "dtype": self.dtype}
            )
            for regime in REGIMES
            if domain.has(regime["gate"])
        ]
        taken = [problem for problem in tested if self.adapter.supports(problem) is None]
        if not taken:
            return []
        calls, given = (
            [problem.inputs() for problem in taken],
            [cotangents(problem, "both") for problem in taken],
        )
        received = [self.adapter.received(call) for call in calls]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        batch, losses = (
            together(received).on(device),
            cotangents_together(given, received[0]).on(device),
        )
        exact = _apart(_truth(batch, losses), received[0], len(taken))
        kernel = _errors([self._run(*call) for call in zip(calls, given, strict=True)], exact)
        member, outputs = self._emulated(batch, losses)
        emulated = _errors(_apart(outputs, received[0], len(taken)), exact)
        about = self.adapter.name, self.dtype, T
        return [
            Row(
                *about,
                self._contract_of(output),
                member[output],
                regime_of(problem),
                output,
                error,
                emulated[i][output],
            )
            for i, problem in enumerate(taken)
            for output, error in kernel[i].items()
        ]

    def _run(self, inputs: Inputs, loss: Cotangents) -> Named:
        output = self.adapter.forward(inputs.copied())
        found: dict[str, Any] = {"o": output.o, "final_state": output.final_state}
        with suppress(ForwardOnlyError):
            found |= self.adapter.gradients(inputs.copied(), loss).named()
        return {name: x.detach() for name, x in found.items()}

    def _emulated(self, batch: Inputs, losses: Cotangents) -> tuple[dict[str, str], Named]:
        io = FORMATS[self.dtype]
        there = self._chosen(ensemble(self.adapter.contract(self.dtype), io))
        back = self._chosen(backward_members(self.adapter.backward_contract(self.dtype), io))
        if self.tile:
            back = replace(back, total=in_tiles(io, self.width, self.tile))
        o, final = there.run(batch)
        outputs = {"o": o, "final_state": final, **member_gradients(back, batch, losses).named()}
        return {name: (there if name in OUTPUTS else back).name for name in outputs}, outputs

    def _chosen(self, members: Sequence[Emulator]) -> Emulator:
        by_name = {member.name: member for member in members}
        return next((by_name[name] for name in self.likely if name in by_name), members[0])

    def _contract_of(self, output: str) -> str:
        tested = self.adapter.contract if output in OUTPUTS else self.adapter.backward_contract
        return tested(self.dtype).name


def in_tiles(fmt: Format, width: int, side: int) -> Callable[[Tensor], Tensor]:
    """The sum of width x width products, as Triton's interpreter has it: a tile's in `fmt`, the
    upper half added onto the lower; tiles in fp32.
    """
    number = width // side

    def total(products: Tensor) -> Tensor:
        tiles = fmt.round(products).unflatten(-1, (number, side, number, side))
        tiles = tiles.transpose(-3, -2).transpose(-1, -2).flatten(-2)
        while tiles.shape[-1] > 1:
            half = tiles.shape[-1] // 2
            tiles = fmt.round(tiles[..., :half] + tiles[..., half:])
        return tiles.squeeze(-1).sum((-2, -1))

    return total


def regime_of(problem: Problem) -> str:
    """What is not as usual: the gate, and keys and betas where they are special."""
    reported = {"random": problem.key, "uniform": problem.beta}
    return " ".join((problem.gate, *(name for usual, name in reported.items() if name != usual)))


def _truth(batch: Inputs, losses: Cotangents) -> Named:
    o, final = chunk(batch, stages=COMPENSATED)
    return {
        "o": o,
        "final_state": final,
        **chunk_backward(batch, losses, stages=COMPENSATED).named(),
    }


def _errors(found: list[Named], exact: list[Named]) -> list[dict[str, float]]:
    """The rms error of every output that is not 0, relative to its rms; a problem after the
    other.
    """
    return [
        {
            name: rms(x.to(one[name].device).double() - one[name]) / rms(one[name])
            for name, x in named.items()
            if bool(one[name].any())
        }
        for named, one in zip(found, exact, strict=True)
    ]


def _apart(found: Named, one: Inputs, number: int) -> list[Named]:
    cut = {
        name: (states_apart if name in ("final_state", "d_initial_state") else tokens_apart)(
            x, one, number
        )
        for name, x in found.items()
    }
    return [dict(zip(cut, pieces, strict=True)) for pieces in zip(*cut.values(), strict=True)]


def shown(rows: list[Row]) -> None:
    """One table: a line a regime, a column an output."""
    first = rows[0]
    of = {(row.regime, row.output): row for row in rows}
    outputs = [name for name in (*OUTPUTS, *GRADIENTS) if any(name == output for _, output in of)]
    reported = dict.fromkeys(f"{row.contract}: {row.member}" for row in rows)
    table = Table(
        title=f"{first.implementation}, {first.dtype}, T = {first.T}",
        caption="; ".join(reported),
        title_justify="left",
    )
    for heading in ("regime", *outputs):
        table.add_column(heading)
    for regime in dict.fromkeys(row.regime for row in rows):
        table.add_row(
            regime,
            *(
                f"{row.kernel / row.emulated:.3f}" if (row := of.get((regime, output))) else ""
                for output in outputs
            ),
        )
    Console(width=140).print(table)


def summed_up(rows: list[Row]) -> None:
    """A line an implementation, dtype, length and kind of memory, in Markdown: the span of the
    ratios, and how many are inside the band.
    """
    outputs = list(dict.fromkeys(row.output for row in rows))
    _line("kernel", "T", "memory", *outputs)
    _line(*["---"] * (3 + len(outputs)))
    for key in dict.fromkeys((row.implementation, row.dtype, row.T) for row in rows):
        of_it = [row for row in rows if (row.implementation, row.dtype, row.T) == key]
        for memory, band, lasting in (("decays", WITHIN, False), ("stays", WITHIN_LONG, True)):
            kept = [row for row in of_it if (row.regime in LONG) == lasting]
            spans = [
                _span([row.kernel / row.emulated for row in kept if row.output == output], *band)
                for output in outputs
            ]
            _line(f"{key[0]}, {key[1]}", str(key[2]), memory, *spans)


def _line(*cells: str) -> None:
    print("|", " | ".join(cells), "|")  # for documents


def _span(ratios: list[float], low: float, high: float) -> str:
    if not ratios:
        return ""
    inside = sum(low <= ratio <= high for ratio in ratios)
    share = "" if inside == len(ratios) else f" ({inside}/{len(ratios)})"
    return f"{min(ratios):.2f}-{max(ratios):.2f}{share}"


if __name__ == "__main__":
    typer.run(main)
