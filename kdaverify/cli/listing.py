"""`kdaverify list`: what there is, and why some of it cannot run here."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


class What(StrEnum):
    """The lists there are."""

    IMPLS = "impls"
    OPS = "ops"
    REGIMES = "regimes"
    PROFILES = "profiles"
    PROBES = "probes"


def list_(
    what: Annotated[What, typer.Argument(help="which list")],
    as_json: Annotated[bool, typer.Option("--json", help="a JSON list of objects with `name`")] = False,
) -> None:
    """Show the implementations, operations, regimes, profiles or probes there are.

    Example: kdaverify list impls
    """
    rows = {What.IMPLS: _impls, What.OPS: _ops, What.REGIMES: _regimes, What.PROFILES: _profiles, What.PROBES: _probes}[what]()
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201 # plain text for other programs
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _impls() -> list[dict[str, Any]]:
    from kdaverify.adapters.registry import shipped

    return [
        {"name": entry.name, "origin": entry.origin, "dtypes": list(entry.dtypes), "missing": entry.missing}
        for entry in shipped()
    ]  # fmt: skip


def _ops() -> list[dict[str, Any]]:
    from oracles.operations import OPERATIONS

    kda = {"name": "kda", "about": "Kimi Delta Attention: o [B, T, HV, V] and S_T [N, HV, K, V], forward and backward"}
    return [kda, *({"name": name, "about": operation.about} for name, operation in OPERATIONS.items())]


def _regimes() -> list[dict[str, Any]]:
    from kdaverify.problems import REGIMES

    return [{"name": name, "axis": axis, "exposes": regime.exposes} for axis, table in REGIMES.items() for name, regime in table.items()]


def _profiles() -> list[dict[str, Any]]:
    from kdaverify.problems import DTYPES, PROFILES, panel, settings_for

    return [
        {
            "name": profile,
            "drawn problems a test": settings_for(profile).max_examples,
            "panel problems": len({entry.name for dtype in DTYPES for entry in panel(dtype, profile)}),
        }
        for profile in PROFILES
    ]


def _probes() -> list[dict[str, Any]]:
    from kdaverify.problems.probes import PROBES

    return [
        {"name": probe.name, "about": probe.about, "exposes": probe.exposes, "dtypes": list(probe.dtypes), "profile": probe.profile}
        for probe in PROBES.values()
    ]
