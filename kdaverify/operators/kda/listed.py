"""What `kdaverify list` shows of the delta rule's own: regimes, probes, sizes of the panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kdaverify.problems import DTYPES, PROFILES, REGIMES, panel
from kdaverify.problems.probes import PROBES


def _regimes() -> list[dict[str, Any]]:
    return [
        {"name": name, "axis": axis, "exposes": regime.exposes}
        for axis, table in REGIMES.items()
        for name, regime in table.items()
    ]


def _probes() -> list[dict[str, Any]]:
    return [
        {
            "name": probe.name,
            "about": probe.about,
            "exposes": probe.exposes,
            "dtypes": list(probe.dtypes),
            "profile": probe.profile,
        }
        for probe in PROBES.values()
    ]


def _panels() -> list[dict[str, Any]]:
    """A problem counts once, in however many formats it is there."""
    return [
        {
            "name": profile,
            "problems": len({entry.name for dtype in DTYPES for entry in panel(dtype, profile)}),
        }
        for profile in PROFILES
    ]


LISTED: Final[Mapping[str, Callable[[], list[dict[str, Any]]]]] = {
    "regimes": _regimes,
    "probes": _probes,
    "panels": _panels,
}
