"""Exactness probes: tiny or long and inexpensive inputs on which a single rounding decision is
visible, one kind a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.problems.probes import decays, keys, lengths, memory, writes
from kdaverify.problems.probes.probe import Measure, Probe
from kdaverify.problems.profiles import PROFILES, check_profile

PROBES: Final[Mapping[str, Probe]] = {
    probe.name: probe for kind in (memory, writes, decays, keys, lengths) for probe in kind.PROBES
}  # fmt: skip
"""Every probe by name."""


def probes(dtype: str, profile: str) -> tuple[Probe, ...]:
    """The probes that a profile tests in one dtype.

    Raises:
        ValueError: no such profile.
    """
    check_profile(profile)
    rank = [*PROFILES].index
    tested = [
        probe
        for probe in PROBES.values()
        if rank(probe.profile) <= rank(profile) and dtype in probe.dtypes
    ]
    return tuple(probe.of(probe.problem.replace(dtype=dtype)) for probe in tested)


__all__ = ["PROBES", "Measure", "Probe", "probes"]
