"""`kdaverify splits`: what cutting the keys of a decode into splits costs, in bytes and in bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import FoundFile, regimes_of

if TYPE_CHECKING:
    from kdaverify.operators.attention.splits.plan import SplitPlan
    from kdaverify.operators.attention.splits.study import Alone, SplitStudy, SplitTrial

T = TypeVar("T")


def splits(
    lengths: Annotated[
        str, typer.Option(help="cached tokens of every request, such as 8192,1,300")
    ],
    sms: Annotated[
        int, typer.Option(min=1, help="streaming multiprocessors; 132 on an H100 SXM")
    ] = 132,
    heads: Annotated[int, typer.Option(min=1, help="query heads")] = 128,
    queries: Annotated[int, typer.Option(min=1, help="query tokens a request")] = 1,
    contract: Annotated[
        str, typer.Option(help="contract of the tolerance and of the other formats")
    ] = "online64-bf16",
    regimes: Annotated[
        str | None,
        typer.Option(
            help="some of normal, flat, peaked, first, last, edges, rising, high, commas between;"
            " default: all"
        ),
    ] = None,
    keys: Annotated[
        int, typer.Option(min=1, help="keys of the request that errors are measured on")
    ] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="seed of every problem")] = 1,
    json_file: FoundFile = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw errors against splits into this .svg file")
    ] = None,
) -> int:
    """Study split-KV decode: schedule of a batch, bytes of partials, and errors of emulated kernels
    by number of splits, format of partials and order of the merge.

    The schedule is FlashMLA's on Hopper. Requests that are cut otherwise when they are alone are
    computed both ways, and their bits compared. Errors are over the tolerance of the contract.

    Example: kdaverify splits --lengths 8192,1,300

    Exit codes: 0 the contract admits some format of partials, 1 it admits none, 2 usage error.
    """
    from kdaverify.operators.attention.splits.study import batch_invariance
    from kdaverify.report.splits import admitted, as_data
    from kdaverify.report.summary import write_json

    plan, study = _plan(lengths, sms, heads, queries), _study(contract, regimes, keys, seed)
    alone = batch_invariance(plan, study.contract, study.seed)
    apart = [*_followed(alone, "requests", len(plan.alike))]
    trials = [*_followed(study.run(), "splits", study.steps)]
    _print(plan, study, trials, apart)
    write_json(json_file, lambda: as_data(plan, study, trials, apart))
    if plot is not None:
        from kdaverify.report.plots import splits_svg

        plot.write_text(splits_svg(trials, study.contract.name))
    return 0 if admitted(study.declared(trials)) else 1


def _followed(found: Iterable[T], doing: str, total: int) -> Iterable[T]:
    return track(found, doing, total, console=Console(stderr=True), transient=True)


def _plan(lengths: str, sms: int, heads: int, queries: int) -> SplitPlan:
    from kdaverify.operators.attention.splits.plan import Heads, SplitPlan

    words = lengths.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise Complaint(f"--lengths: wanted numbers such as 8192,1,300, got {lengths!r}")
    return SplitPlan(tuple(map(int, words)), sms, Heads(s_q=queries, H=heads))


def _study(contract: str, regimes: str | None, keys: int, seed: int) -> SplitStudy:
    from typing import get_args

    from kdaverify.budgets.attention.contract import attention_contract
    from kdaverify.operators.attention.problem import Dtype
    from kdaverify.operators.attention.splits.study import REGIMES, SPLITS, SplitStudy

    names = regimes_of(regimes, REGIMES)
    with as_complaint(ValueError, prefix="--contract: "):
        declared = attention_contract(contract)
    if (io := declared.storage("o").name) not in get_args(Dtype):
        raise Complaint(f"--contract: wanted one of {', '.join(get_args(Dtype))}, got {io}")
    if declared.splits < SPLITS[1]:
        raise Complaint(f"--contract: {contract} declares one split, so there is no partial")
    return SplitStudy(declared, names, keys, seed)


def _print(
    plan: SplitPlan, study: SplitStudy, trials: list[SplitTrial], apart: list[Alone]
) -> None:
    from kdaverify.report.mailboxes import show
    from kdaverify.report.splits import (
        answers,
        partials_table,
        plan_line,
        requests_table,
        shares_table,
    )

    several, most = study.declared(trials), study.contract.splits
    show(
        Console(),
        plan_line(plan, study.contract.storage("o").name),
        requests_table(apart),
        shares_table(trials, "splits", "number of splits", f"{most} declared at most"),
        shares_table(several, "regime", "regime"),
        partials_table(plan, study, several),
        *answers(study, several),
    )
