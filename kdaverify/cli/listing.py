"""`kdaverify list`: what there is, and why some of it cannot run here."""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.cli.complaint import Complaint
from kdaverify.cli.options import JsonList


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
    name: Annotated[str | None, typer.Argument(help="one item of it, shown in full")] = None,
    as_json: JsonList = False,
) -> None:
    """List what there is, one line an item, or one item in full.

    Implementations, operators, regimes, profiles, laws, probes, rules of calls, known faults,
    faults planted for an export, and published standards.

    Examples:
    kdaverify list impls
    kdaverify list faults H1
    """
    rows = _LISTS[what]()
    if name is not None:
        rows = _named(rows, what, name)
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201 # plain text for other programs
        return
    console = Console()
    if name is None:
        _show_lines(console, what, rows)
        return
    for row in rows:
        _show_one(console, row)


def _named(rows: list[dict[str, Any]], what: What, name: str) -> list[dict[str, Any]]:
    """All of that name: a regime may have one on several axes.

    Raises:
        Complaint: there is none.
    """
    found = [row for row in rows if row["name"] == name]
    if not found:
        close = get_close_matches(name, [str(row["name"]) for row in rows], n=3, cutoff=0.5)
        if close:
            hint = f"did you mean {' or '.join(close)}?"
        else:
            hint = f"`kdaverify list {what}` names them"
        raise Complaint(f"list: no {name!r} among {what}; {hint}")
    return found


def _show_lines(console: Console, what: What, rows: list[dict[str, Any]]) -> None:
    """A line an item, cut where the terminal ends.
    Names of packages hold brackets, so nothing is taken for markup.
    """
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        line = Text(f"{row['name']:<{width}}  ", style="bold")
        line.append(" ".join(_in_short(what, row).split()), style="not bold")
        line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
    console.print(
        Text(f"{len(rows)} {what}; in full: kdaverify list {what} NAME, or --json", style="dim")
    )


def _in_short(what: What, row: dict[str, Any]) -> str:
    """What is said of an item in one line."""
    if what is What.IMPLS:
        return f"{', '.join(row['dtypes']) or 'needs options'}; {row['missing'] or 'runs here'}"
    if what is What.FAULTS:
        if row["missing"]:
            return f"not re-created: {row['missing']}"
        return f"{row['stage']}: {row['title']}"
    if what is What.PROFILES:
        return ", ".join(f"{count} {name}" for name, count in row.items() if name != "name")
    axis = f"{row['axis']}: " if what is What.REGIMES else ""
    return axis + str(
        next(
            row[field]
            for field in ("about", "statement", "exposes", "criterion", "trigger")
            if field in row
        )
    )


def _show_one(console: Console, row: dict[str, Any]) -> None:
    """Every field of an item that has one."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for field, value in row.items():
        if value not in (None, "", []):
            table.add_row(Text(field.replace("_", " "), style="dim"), Text(_cell(value)))
    console.print(table)


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _impls() -> list[dict[str, Any]]:
    from kdaverify.adapters.registry import shipped

    return [
        {
            "name": entry.name,
            "origin": entry.origin,
            "dtypes": list(entry.dtypes),
            "missing": entry.missing,
        }
        for entry in shipped()
    ]


def _ops() -> list[dict[str, Any]]:
    from kdaverify.operator import OPERATORS, operator_named

    return [
        {"name": name, "about": operator_named(name).about, **_tensors(name)} for name in OPERATORS
    ]


def _tensors(op: str) -> dict[str, Any]:
    """What an exposed activation is called with, and returns, by name."""
    from oracles.pointwise.operations import OPERATIONS

    if op not in OPERATIONS:
        return {}
    one = OPERATIONS[op]
    return {"takes": [*one.takes], "returns": one.result, "gradients": [*one.gradients]}


def _of_operators(what: str) -> list[dict[str, Any]]:
    from kdaverify.operator import OPERATORS, CallOperator, operator_named

    operators = map(operator_named, OPERATORS)
    return [
        row
        for operator in operators
        if isinstance(operator, CallOperator)
        for row in operator.listed(what)
    ]


def _standards() -> list[dict[str, Any]]:
    from kdaverify.checks.published.registry import RULES

    return [
        {"name": rule.name, "criterion": rule.criterion, "source": rule.source}
        for rule in RULES.values()
    ]


def _profiles() -> list[dict[str, Any]]:
    from kdaverify.problems.profiles import settings_for

    return [
        {
            "name": row["name"],
            "random problems a test": settings_for(row["name"]).max_examples,
            "panel problems": row["problems"],
        }
        for row in _of_operators("panels")
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
    return [
        *there,
        *(
            {
                **dict.fromkeys(there[0]),
                "name": gap.id,
                "reference": gap.reference,
                "missing": gap.why,
            }
            for gap in NOT_RECREATED
        ),
    ]


def _planted() -> list[dict[str, Any]]:
    from kdaverify.faults.planted.catalogue import PLANTED

    return [
        {
            "name": fault.id,
            "impl": f"fault:{fault.id}",
            "question": fault.question,
            "trigger": fault.trigger,
            "profile": fault.profile,
        }
        for fault in PLANTED.values()
    ]


def _laws() -> list[dict[str, Any]]:
    from kdaverify.checks.property_table import PROPERTIES
    from kdaverify.operator import OPERATORS, CallOperator, operator_named

    operators = [
        found for found in map(operator_named, OPERATORS) if isinstance(found, CallOperator)
    ]
    laws = [law for operator in operators for law in operator.laws().values()]
    own = [
        (found.name, found.name, found.law)
        for found in PROPERTIES.values()
        if found.law is not None
    ]
    return [
        {
            "name": name,
            "suite": suite,
            "statement": law.statement,
            "math": law.section,
            "exists_for": law.exists_for,
        }
        for name, suite, law in [*((law.name, "laws", law) for law in laws), *own]
    ]


def _calls() -> list[dict[str, Any]]:
    from kdaverify.checks.calls import RULES

    return [
        {"name": rule.name, "about": rule.about, "exposes": rule.exposes, "profile": rule.profile}
        for rule in RULES.values()
    ]


_LISTS: Final[dict[What, Callable[[], list[dict[str, Any]]]]] = {
    What.IMPLS: _impls,
    What.OPS: _ops,
    What.REGIMES: partial(_of_operators, "regimes"),
    What.PROFILES: _profiles,
    What.LAWS: _laws,
    What.PROBES: partial(_of_operators, "probes"),
    What.CALLS: _calls,
    What.FAULTS: _faults,
    What.PLANTED: _planted,
    What.STANDARDS: _standards,
}
