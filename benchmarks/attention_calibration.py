"""Does an emulated contract of attention err as the real kernel does? The kernel's rms error over
the emulated one, of o and of LSE.

    python -m benchmarks.attention_calibration --impl flash_mla --impl torch-sdpa-cudnn --json F
    python -m benchmarks.attention_calibration --read F

One problem a regime of logits, at sizes of a model's heads or with `--small`. The truth is the
pipeline in float64, 2^29 times as accurate as what is measured. Emulated are the contract's
reference kernels that round to nearest: the ratio is to the one that decides as the kernel's source
does, named under each table, and the span is that of the ratios to all of them. 1.00 is a kernel
that errs as its contract says it must.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.budgets.attention.calls import as_read
from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.attention.ensemble import ReferenceKernel, rounded_kernels
from kdaverify.budgets.statistics import rms
from kdaverify.checks.execute import execute
from kdaverify.operators.attention.regimes import Logits
from oracles.arithmetic import Arithmetic
from oracles.attention.calls import RequestsCall
from oracles.attention.design import OnlineDesign

WITHIN: Final = {"o": 0.05, "lse": 0.10}
"""What a ratio may be away from 1: the calibration that the tolerances of attention rest on."""
LEFT_OUT: Final = frozenset({"special", "zero", "equal"})
"""Regimes without an error to compare: NaN, and logits or values that every kernel has exactly."""
MODEL: Final[dict[str, dict[str, Any]]] = {
    "attention": {"B": 2, "s_q": 256, "s_k": 2048, "H": 8, "h_kv": 2, "d_k": 128, "d_v": 128},
    "mla_decode": {
        "k_lengths": (1024, 2048, 4096, 700), "s_q": 1, "H": 64, "d_k": 576, "d_v": 512, "page": 64,
    },
    "sparse_attention": {
        "B": 1, "s_q": 8, "pages": 64, "page": 64, "topk": 2048, "H": 64, "d_k": 576, "d_v": 512,
    },
}  # fmt: skip
"""Sizes of a model's heads, by operator."""
SMALL: Final[dict[str, dict[str, Any]]] = {
    "attention": {"B": 2, "s_q": 64, "s_k": 515, "H": 4, "h_kv": 2, "d_k": 64, "d_v": 64},
    "mla_decode": {
        "k_lengths": (515, 130, 260), "s_q": 1, "H": 16, "d_k": 96, "d_v": 64, "page": 16,
    },
    "sparse_attention": {
        "B": 1, "s_q": 4, "pages": 33, "page": 16, "topk": 515, "H": 16, "d_k": 192, "d_v": 128,
    },
}  # fmt: skip
"""For a CPU, and for an interpreter."""
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """One output of one problem.

    Args:
        kernel: the rms error of the kernel, relative to the rms of the output.
        emulated: that of each reference kernel, by its name.
    """

    implementation: str
    dtype: str
    contract: str
    regime: str
    output: str
    kernel: float
    emulated: dict[str, float]

    def ratio(self, member: str) -> float:
        return self.kernel / self.emulated[member]

    @property
    def span(self) -> tuple[float, float]:
        found = [self.ratio(name) for name in self.emulated]
        return min(found), max(found)

    @property
    def nearest(self) -> float:
        """The ratio to the reference kernel that errs most as the kernel does."""
        return min(map(self.ratio, self.emulated), key=lambda ratio: abs(math.log(ratio)))


def main(
    *,
    impl: Annotated[
        list[str] | None, typer.Option(help="implementation, as for kdaverify verify; repeatable")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="format, repeatable; bf16 and fp16 by default")
    ] = None,
    member: Annotated[
        str, typer.Option(help="reference kernel that ratios are to; the plainest by default")
    ] = "",
    small: Annotated[bool, typer.Option("--small", help="sizes for a CPU")] = False,
    record: Annotated[Path | None, typer.Option("--json", help="write every figure")] = None,
    read: Annotated[
        list[Path] | None, typer.Option(help="figures to sum up instead, repeatable")
    ] = None,
) -> None:
    """Prints one table for every implementation and format, and a line of each at the end."""
    rows = [Row(**row) for path in read or [] for row in json.loads(path.read_text())]
    for spec in impl or []:
        adapter = find(spec)
        if reason := adapter.missing():
            raise typer.BadParameter(f"{spec}: {reason}")
        for name in dtype or ["bf16", "fp16"]:
            rows += measured(adapter, name, SMALL if small else MODEL)
            if record is not None:
                record.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    for one in _tables(rows):
        shown(one, member)
    summed_up(rows, member)


def measured(adapter: Adapter, dtype: str, sizes: dict[str, dict[str, Any]]) -> list[Row]:
    """Every output of every regime that the implementation takes."""
    if dtype not in adapter.dtypes:
        return []
    operator, found = adapter.operator, list[Row]()
    regimes = [name for name in get_args(Logits) if name not in LEFT_OUT]
    for logits in track(regimes, f"{adapter.name} {dtype}", transient=True):
        given = {**sizes[operator.name], "dtype": dtype, "logits": logits, "seed": 1}
        if operator.name == "sparse_attention" and "decode" in adapter.name:
            given["cache"] = "fp8"
        problem = operator.problem(**given)
        if (reason := adapter.supports(problem)) is not None:
            print(f"{adapter.name}, {dtype}, {logits}: not measured, {reason}")
            continue
        found += regime_rows(adapter, problem)
    return found


@torch.inference_mode()
def regime_rows(adapter: Adapter, problem: Any) -> list[Row]:
    """Every output of one problem."""
    call = adapter.received(problem.inputs())
    found = execute(adapter, call, adapter.exposes(problem)).outputs
    contract: Any = adapter.contract(problem.dtype)
    there = call.on("cuda" if torch.cuda.is_available() else "cpu")
    exact = _outputs(there, ReferenceKernel(OnlineDesign(), Arithmetic(), torch.float64))
    emulated = {name: _errors(run, exact) for name, run in _emulated(there, contract)}
    about = adapter.name, problem.dtype, contract.name, problem.logits
    return [
        Row(*about, name, error, {member: of[name] for member, of in emulated.items()})
        for name, error in _errors(found, exact).items()
    ]


def _emulated(call: RequestsCall, contract: AttentionContract) -> Iterator[tuple[str, Named]]:
    """What each reference kernel that rounds to nearest makes of the call."""
    read = as_read(call, contract)
    for name, one in rounded_kernels(contract).items():
        if not name.startswith("sums from"):  # term by term: minutes at these sizes
            yield name, _outputs(read, one)


def _outputs(call: RequestsCall, one: ReferenceKernel) -> Named:
    o, lse = zip(*(one.forward(segment) for segment in call.stacked()), strict=True)
    return {"o": call.joined("o", o), "lse": call.joined("lse", lse)}


def _errors(found: Named, exact: Named) -> dict[str, float]:
    """The rms error of every output, relative to its rms."""
    pairs = ((name, x.to(exact[name].device).double(), exact[name]) for name, x in found.items())
    return {name: rms(x - wanted) / rms(wanted) for name, x, wanted in pairs}


def _tables(rows: list[Row]) -> list[list[Row]]:
    """Rows of one implementation and format each."""
    found = dict[tuple[str, str], list[Row]]()
    for row in rows:
        found.setdefault((row.implementation, row.dtype), []).append(row)
    return [*found.values()]


def _member(row: Row, wanted: str) -> str:
    return wanted if wanted in row.emulated else next(iter(row.emulated))


def shown(rows: list[Row], member: str) -> None:
    """A line a regime, ratio and span of an output in a column each."""
    first = rows[0]
    title = f"{first.implementation}, {first.dtype}"
    caption = f"{first.contract}: {_member(first, member)}"
    table = Table("regime", "error of o", title=title, caption=caption, title_justify="left")
    outputs = list(dict.fromkeys(row.output for row in rows))
    for name in outputs:
        table.add_column(f"{name}: ratio")
        table.add_column("to any")
    of = {(row.regime, row.output): row for row in rows}
    for regime in dict.fromkeys(row.regime for row in rows):
        there = [of[regime, name] for name in outputs]
        cells = [
            cell
            for row in there
            for cell in (
                f"{row.ratio(_member(row, member)):.3f}",
                "{:.2f} to {:.2f}".format(*row.span),
            )
        ]
        table.add_row(regime, f"{there[0].kernel:.2e}", *cells)
    Console(width=120).print(table)


def summed_up(rows: list[Row], member: str) -> None:
    """A line an implementation, format and output, in Markdown: the ratios, and how many are within
    the band.
    """
    print("| kernel | contract | output | band | to the likely one | to the nearest |")
    print("|---|---|---|---|---|---|")
    for one in _tables(rows):
        for name in dict.fromkeys(row.output for row in one):
            of = [row for row in one if row.output == name]
            likely = _counted([row.ratio(_member(row, member)) for row in of], WITHIN[name])
            nearest = _counted([row.nearest for row in of], WITHIN[name])
            about = f"`{one[0].implementation}` {one[0].dtype} | `{one[0].contract}` | {name}"
            print(f"| {about} | {WITHIN[name]:.0%} | {likely} | {nearest} |")


def _counted(ratios: list[float], band: float) -> str:
    near = sum(abs(ratio - 1) <= band for ratio in ratios)
    return f"{min(ratios):.3f} to {max(ratios):.3f}, {near} of {len(ratios)} within"


if __name__ == "__main__":
    typer.run(main)
