"""The option of the command line that names a benchmark for others' standards."""

from __future__ import annotations

from typing import Annotated

import typer

Benchmark = Annotated[
    str | None,
    typer.Option(
        help=(
            "implementation whose errors published standards compare with; default: an emulated"
            " baseline kernel"
        )
    ),
]
