"""`kdaverify contracts`: the arithmetic that implementations declare, listed and spelled out.

Contracts of other operators are in `kdaverify.operators.kda.commands.storage_contracts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import JsonList
from kdaverify.operators.kda.commands.storage_contracts import OperatorContract, storage_contract

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.budgets.contract import Contract
    from kdaverify.budgets.description import DescribedStage, Description

contracts = typer.Typer(
    no_args_is_help=True, help="The arithmetic that kernels declare: what is rounded where."
)

WHAT = (
    "a shipped contract, a .toml file, a name such as chunk64-bf16, or impl:NAME for what an"
    " implementation declares"
)
DTYPE = "format of q, k, v and o: fp64, fp32, bf16 or fp16"
IMPL = "impl:"
USUAL = "bf16"


@dataclass(frozen=True)
class _Found:
    """A contract, what is known of it, and the inputs it is for."""

    contract: Contract
    dtype: str | None
    about: str = ""
    source: tuple[str, ...] = ()


@contracts.command("list")
def list_(as_json: JsonList = False) -> None:
    """Show the contracts that ship with the implementations, and those of other operators.

    What each declares is shown for bf16 inputs, or for the format that its name ends in.

    Example: kdaverify contracts list
    """
    from kdaverify.budgets.contract_name import spelled
    from kdaverify.budgets.presets import presets
    from kdaverify.operators.kda.commands.storage_contracts import listed

    rows = [
        {
            "name": name,
            "declares": spelled(file.contract(USUAL)),
            "about": file.about,
            "source": file.source,
        }
        for name, file in presets().items()
    ]
    rows += [
        {"name": one.name, "declares": one.declares, "about": one.about, "source": ()}
        for one in listed()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201 # plain text for other programs
        return
    table = Table("name", "declares", "about")
    for row in rows:
        table.add_row(*(Text(str(row[column])) for column in ("name", "declares", "about")))
    console = Console()
    console.print(table)
    console.print(
        Text(
            "Spelled out: kdaverify contracts show NAME. A contract of your own: kdaverify"
            " contracts show NAME --toml > mine.toml"
        )
    )


@contracts.command()
def show(
    contract: Annotated[str, typer.Argument(help=WHAT)],
    dtype: Annotated[str | None, typer.Option(help=DTYPE)] = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="as a file that contract= and this command take")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Spell a contract out as its pipeline.

    Stage by stage, forward and then backward: the format of the operands of every product, of its
    sums, and of every tensor where it is stored; then what holds throughout, and the reference
    ensemble, whose kernels differ in what the contract leaves open. A contract of another operator
    is shown key by key.

    Examples:
    kdaverify contracts show chunk64-bf16
    kdaverify contracts show online64-bf16
    kdaverify contracts show impl:fla --dtype fp16
    kdaverify contracts show fla --dtype bf16 --toml > mine.toml
    """
    from kdaverify.budgets.contract_file import to_toml
    from kdaverify.budgets.contract_name import known_format
    from kdaverify.budgets.description import describe

    if as_toml and as_json:
        raise Complaint("--toml and --json: wanted one of them, got both")
    found = _found(contract, dtype)
    if isinstance(found, OperatorContract):
        _show_of_operator(found, as_toml=as_toml, as_json=as_json)
        return
    if as_toml:
        # a file
        print(to_toml(found.contract, about=found.about, source=found.source), end="")  # noqa: T201
        return
    described = describe(
        found.contract, None if found.dtype is None else known_format(found.dtype, "dtype")
    )
    if as_json:
        known = {
            "name": found.contract.name,
            "about": found.about,
            "source": list(found.source),
            "dtype": found.dtype,
        }
        # plain text for other programs
        print(json.dumps({**known, **described.json()}, indent=2))  # noqa: T201
        return
    _print(found, described, Console())


def _show_of_operator(found: OperatorContract, *, as_toml: bool, as_json: bool) -> None:
    if as_toml:
        raise Complaint(
            f"--toml: {found.name} is {found.about}, which take contracts by name alone"
        )
    if as_json:
        print(json.dumps(found.json(), indent=2))  # noqa: T201 # plain text for other programs
        return
    found.show(Console())


def _found(named: str, dtype: str | None) -> _Found | OperatorContract:
    from pathlib import Path

    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.registry import find
    from kdaverify.budgets.contract_checks import ContractError
    from kdaverify.budgets.contract_file import read_contract
    from kdaverify.budgets.declared import declared_contract
    from kdaverify.budgets.presets import presets
    from kdaverify.problems.axes import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise Complaint(f"--dtype: wanted one of {', '.join(DTYPES)}, got {dtype!r}")
    with as_complaint(AdapterError, ContractError):
        if named.startswith(IMPL):
            return _of_implementation(find(named.removeprefix(IMPL)), dtype)
        # gdn64 has a file for each format, and none of its own name.
        of_format = presets().get(f"{named}-{dtype or USUAL}")
        file = presets().get(named) or of_format
        if named.endswith(".toml"):
            file = read_contract(Path(named))
        if file is None:
            other = storage_contract(named, dtype)
            return other or _Found(declared_contract(named, dtype), dtype)
        dtype = dtype or (USUAL if file.needs_dtype or file is of_format else None)
        declared = (
            file.contract(dtype) if named.endswith(".toml") else declared_contract(named, dtype)
        )
        return _Found(declared, dtype, file.about, tuple(file.source))


def _of_implementation(adapter: Adapter, dtype: str | None) -> _Found | OperatorContract:
    from kdaverify.budgets.contract import Contract

    if not adapter.dtypes:
        raise Complaint(
            f"{adapter.name}: not configured, so it takes no inputs: {adapter.missing()}"
        )
    chosen = dtype or (USUAL if USUAL in adapter.dtypes else adapter.dtypes[0])
    if chosen not in adapter.dtypes:
        raise Complaint(
            f"--dtype: {adapter.name} takes {', '.join(adapter.dtypes)}, got {chosen!r}"
        )
    declared: Any = adapter.contract(chosen)
    if not isinstance(declared, Contract):
        return OperatorContract(declared.name, declared, chosen, (adapter.op,))
    return _Found(
        declared, chosen, f"what {adapter.name} declares; it takes {', '.join(adapter.dtypes)}"
    )


def _print(found: _Found, described: Description, console: Console) -> None:
    console.print(
        Text(found.contract.name, "bold"),
        Text("" if found.dtype is None else f"for {found.dtype} inputs"),
    )
    for line in (found.about, *(f"from {fact}" for fact in found.source)):
        if line:
            console.print(Text(line))
    console.print(_pipeline("forward", described.forward))
    console.print(_pipeline("backward", described.backward))
    if any(stage.declared for stage in (*described.forward, *described.backward)):
        console.print(Text("* declared for this tensor alone"))
    throughout = Table("throughout", "declared")
    for name, value in described.settled.items():
        throughout.add_row(name, value)
    console.print(throughout)
    draws = f"{described.draws} stochastic-rounding samples, more where they scatter"
    console.print(
        Text(f"Reference ensemble: {len(described.members)} kernels, and {draws}", "bold")
    )
    for name in dict.fromkeys((*described.members, *described.backward_members)):
        console.print(Text(f"  {name}{_alone(name, described)}"))


def _alone(name: str, described: Description) -> str:
    if name not in described.members:
        return " (backward alone)"
    return "" if name in described.backward_members else " (forward alone)"


def _pipeline(title: str, stages: Iterable[DescribedStage]) -> Table:
    table = Table(title, "products of", "summed in", "stores")
    for stage in stages:
        stores = (
            f"{name}{'*' if name in stage.declared else ''}:{fmt}"
            for name, fmt in stage.stores.items()
        )
        table.add_row(stage.name, stage.operands or "-", stage.sums, "  ".join(stores))
    return table
