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
    LAWS = "laws"
    PROBES = "probes"
    CALLS = "calls"
    FAULTS = "faults"
    PLANTED = "planted"
    STANDARDS = "standards"


def list_(
    what: Annotated[What, typer.Argument(help="which list")],
    as_json: Annotated[bool, typer.Option("--json", help="a JSON list of objects with `name`")] = False,
) -> None:
    """Show the implementations, operations, regimes, profiles, laws, probes, rules of calls, faults (planted too) or standards.

    Example: kdaverify list impls
    """
    lists = {
        What.IMPLS: _impls,
        What.OPS: _ops,
        What.REGIMES: _regimes,
        What.PROFILES: _profiles,
        What.LAWS: _laws,
        What.PROBES: _probes,
        What.CALLS: _calls,
        What.FAULTS: _faults,
        What.PLANTED: _planted,
        What.STANDARDS: _standards,
    }
    rows = lists[what]()
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201 # plain text for other programs
        return
    told = {What.FAULTS: _told, What.LAWS: _told_law}.get(what)
    rows = rows if told is None else [told(row) for row in rows]
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def _told(fault: dict[str, Any]) -> dict[str, Any]:
    """A fault in few columns."""
    if fault["missing"] is not None:
        return {
            "name": fault["name"],
            "stage": None,
            "class": None,
            "about": f"not re-created: {fault['missing']}; seen in {fault['reference']}",
        }
    about = f"{fault['title']}; shows on {fault['trigger']}, in {', '.join(fault['outputs'])}; seen in {fault['reference']}"
    return {"name": fault["name"], "stage": fault["stage"], "class": fault["class"], "about": about}


def _told_law(law: dict[str, Any]) -> dict[str, Any]:
    """A law in few columns."""
    return {"name": law["name"], "suite": law["suite"], "about": f"{law['statement']} (math.md {law['math']}); for {law['exists_for']}"}


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
    from oracles.pointwise.operations import OPERATIONS

    kda = {"name": "kda", "about": "Kimi Delta Attention: o [B, T, HV, V] and S_T [N, HV, K, V], forward and backward"}
    return [kda, *({"name": name, "about": operation.about} for name, operation in OPERATIONS.items())]


def _regimes() -> list[dict[str, Any]]:
    from kdaverify.problems import REGIMES

    return [{"name": name, "axis": axis, "exposes": regime.exposes} for axis, table in REGIMES.items() for name, regime in table.items()]


def _standards() -> list[dict[str, Any]]:
    from kdaverify.checks.published.registry import RULES

    return [{"name": rule.name, "asks": rule.asks, "source": rule.source} for rule in RULES.values()]


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


def _faults() -> list[dict[str, Any]]:
    from kdaverify.faults.catalogue import FAULTS, NOT_RECREATED
    from kdaverify.faults.fault import KINDS

    there = [
        {
            "name": fault.id,
            "impl": f"fault:{fault.id}",
            "stage": fault.stage,
            "class": f"{fault.kind} {KINDS[fault.kind]}",
            "title": fault.title,
            "trigger": fault.trigger,
            "outputs": list(fault.outputs),
            "dtypes": list(fault.dtypes),
            "strengths": [f"{strength:g}" for strength in fault.strengths],
            "reference": fault.reference,
            "missing": None,
        }
        for fault in FAULTS.values()
    ]
    return [*there, *({**dict.fromkeys(there[0]), "name": gap.id, "reference": gap.reference, "missing": gap.why} for gap in NOT_RECREATED)]


def _planted() -> list[dict[str, Any]]:
    from kdaverify.faults.planted.catalogue import PLANTED

    return [
        {"name": fault.id, "impl": f"fault:{fault.id}", "question": fault.question, "trigger": fault.trigger, "profile": fault.profile}
        for fault in PLANTED.values()
    ]


def _laws() -> list[dict[str, Any]]:
    from kdaverify.checks.property_table import PROPERTIES
    from kdaverify.operator import OPERATORS, CallOperator, operator_named

    operators = [found for found in map(operator_named, OPERATORS) if isinstance(found, CallOperator)]
    laws = [law for operator in operators for law in operator.laws().values()]
    own = [(found.name, found.name, found.law) for found in PROPERTIES.values() if found.law is not None]
    return [
        {"name": name, "suite": suite, "statement": law.statement, "math": law.section, "exists_for": law.exists_for}
        for name, suite, law in [*((law.name, "laws", law) for law in laws), *own]
    ]


def _calls() -> list[dict[str, Any]]:
    from kdaverify.checks.calls import RULES

    return [{"name": rule.name, "about": rule.about, "exposes": rule.exposes, "profile": rule.profile} for rule in RULES.values()]


def _probes() -> list[dict[str, Any]]:
    from kdaverify.problems.probes import PROBES

    return [
        {"name": probe.name, "about": probe.about, "exposes": probe.exposes, "dtypes": list(probe.dtypes), "profile": probe.profile}
        for probe in PROBES.values()
    ]
