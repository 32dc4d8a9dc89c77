"""Probes: tiny, or long and inexpensive, inputs on which a single rounding decision is visible."""

from __future__ import annotations

from kdaverify.problems.probes import Probe
from kdaverify.verdicts.judge import Judge


def test_probes(judge: Judge, probed: Probe) -> None:
    judge(probed.problem, probe=probed.name)
