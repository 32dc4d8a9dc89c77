"""Whether rows are of one thing: the versions of what they judge, and of what judged them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kdaverify.verdicts.columns import RecordError, polars

if TYPE_CHECKING:
    import polars as pl

KERNEL: Final = "kernel"
"""Among the versions of a row, the kernel that ran: it may differ from case to case."""


def mixed(rows: pl.LazyFrame) -> dict[str, tuple[str, ...]]:
    """A sentence for every implementation whose rows have several versions of something.

    Raises:
        RecordError: versions that are no JSON object of words.
    """
    pl = polars("versions")
    known = pl.col("versions") != "{}"
    found = (
        rows.filter(known).select("implementation", "versions").unique().collect(engine="streaming")
    )
    seen: dict[str, dict[str, set[str]]] = {}
    for implementation, versions in found.iter_rows():
        for name, value in _read(versions).items():
            seen.setdefault(implementation, {}).setdefault(name, set()).add(value)
    reported = {
        implementation: _reported(by_name) for implementation, by_name in sorted(seen.items())
    }
    return {
        implementation: sentences for implementation, sentences in reported.items() if sentences
    }


def _reported(by_name: dict[str, set[str]]) -> tuple[str, ...]:
    return tuple(
        f"{name} in versions {', '.join(sorted(values))}"
        for name, values in sorted(by_name.items())
        if len(values) > 1
    )


def _read(versions: str) -> dict[str, str]:
    try:
        found = json.loads(versions)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise RecordError(
            f"record: wanted versions as a JSON object, got {versions[:80]!r}; take the record as"
            " it was written"
        )
    return {str(name): str(value) for name, value in found.items() if name != KERNEL}
