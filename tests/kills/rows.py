"""Rows that the tests of journals, plans and matrices share."""

from __future__ import annotations

from typing import Any

from kdaverify.kills.rows import Attempt, ConformingRow, FaultRow, Kill

SMOKE, ACCEPTANCE = "smoke", "acceptance"


def kill(**fields: Any) -> Kill:
    given: dict[str, Any] = {
        "property": "forward",
        "output": "o",
        "dtype": "fp32",
        "case": "kda-0",
        "status": "FAIL",
        "statistic": "rms",
        "ratio": 40.0,
        "over_family": 30.0,
        "message": "o is off",
        "replay": "kdaverify replay",
    }
    return Kill(**{**given, **fields})


def attempt(
    strength: float = 1.0, *, killed: bool = True, profile: str = SMOKE, **fields: Any
) -> Attempt:
    return Attempt(
        strength=strength,
        profile=profile,
        kill=kill(ratio=40 * strength) if killed else None,
        cases=7,
        seconds=1.5,
        **fields,
    )


def fault_row(name: str, *attempts: Attempt, profile: str = SMOKE) -> FaultRow:
    return FaultRow(id=name, profile=profile, attempts=attempts or (attempt(profile=profile),))


def conforming_row(name: str = "eager", profile: str = SMOKE, **fields: Any) -> ConformingRow:
    given: dict[str, Any] = {"id": name, "profile": profile, "runs": 100, "seconds": 9.0, **fields}
    return ConformingRow(**given)
