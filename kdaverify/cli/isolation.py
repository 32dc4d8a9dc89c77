"""The options of the command line that decide where kernels run, and what they may take there."""

from __future__ import annotations

from typing import Annotated

import typer

from kdaverify.cli.complaint import Complaint
from kdaverify.limits import ISOLATE, NO_ISOLATE, Limits

Isolate = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate", help=f"--isolate: {ISOLATE}; --no-isolate: {NO_ISOLATE}"
    ),
]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", help="seconds that one call may take in a worker process")
]
MemoryLimit = Annotated[
    float, typer.Option("--memory-limit", help="memory of a worker process, in GiB")
]


def limits_from(seconds: float, gib: float) -> Limits:
    """The limits that the options give."""
    try:
        return Limits(seconds=seconds, gib=gib)
    except ValueError as error:
        raise Complaint(str(error)) from None
