"""Which failing cases of a session are localised: the first of each kind, in a part of the time.

Where the stages are right, or many, one localisation costs as much as ten cases; a bug fails in a
hundred cases in the same stage. The case that is shown of a kind is localised in the end, if it was
not before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pytest

from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter

MOST: Final = 2
"""Cases of a kind in one process."""
SECONDS: Final = 10.0
"""In one process, for each implementation; what is begun is ended."""


@dataclass
class _Spent:
    """What one process has localised of one implementation."""

    kinds: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])
    seconds: float = 0.0


_SPENT = pytest.StashKey[dict[str, _Spent]]()


def localised(
    config: pytest.Config, spec: str, verdicts: Sequence[Verdict], adapter: Adapter
) -> list[Verdict]:
    """The same verdicts; failing cases whose turn it is with the first wrong stage."""
    spent = config.stash.setdefault(_SPENT, {}).setdefault(spec, _Spent())
    return [
        row
        for _, case in groupby(verdicts, key=lambda row: row.case_key())
        for row in _of_case([*case], adapter, spent)
    ]


def _of_case(case: list[Verdict], adapter: Adapter, spent: _Spent) -> list[Verdict]:
    from kdaverify.verdicts.locate import localises, located

    # A stage that was tested by itself has its name at no cost.
    if PROPERTIES[case[0].property].stages or not localises(case):
        return located(case, adapter)
    kind = _kind(case)
    spent.kinds[kind] += 1
    if spent.kinds[kind] > MOST or spent.seconds > SECONDS:
        return case
    started = time.monotonic()
    found = located(case, adapter)
    spent.seconds += time.monotonic() - started
    return found


def _kind(case: Sequence[Verdict]) -> tuple[str, ...]:
    first = case[0]
    called = plain_call(first.property, first.detail) or first.property
    return (
        called,
        first.dtype,
        *(f"{row.output} {row.status}" for row in case if row.status.rejects),
    )
