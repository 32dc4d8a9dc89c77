"""`kdaverify problem`: a problem to start from, and the schema that problems follow."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.operator import DEFAULT


def problem(
    example: Annotated[
        bool, typer.Option("--example", help="print a small problem as JSON")
    ] = False,
    op: Annotated[
        str, typer.Option(help="operator of the problem; `kdaverify list ops` names them")
    ] = DEFAULT,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="print the JSON schema: every field, every name it may have"),
    ] = False,
) -> None:
    """Print an example of a problem, or the schema that problems follow.

    A problem is a JSON object: sizes, regimes, format and seed, from which the same tensors are
    built on any machine. `replay` and `oracle` take one, as a file or in single quotes.

    Examples:
    kdaverify problem --example > problem.json
    kdaverify replay --impl my_port.py problem.json
    kdaverify oracle problem.json -o exact.safetensors
    """
    from kdaverify.canonical import ProblemError
    from kdaverify.operator import operator_named

    if example == schema:
        raise Complaint(
            "problem: wanted --example or --schema, got " + ("both" if example else "neither")
        )
    with as_complaint(ProblemError, prefix="--"):
        operator = operator_named(op)
    found = operator.example()
    if example and found is None:
        raise Complaint(
            f"--example: there is none for {op}; the field `problem` of any row of a record"
            " holds one"
        )
    shown = operator.schema() if found is None or schema else json.loads(found.to_json())
    print(json.dumps(shown, indent=2))  # noqa: T201 # to be piped
