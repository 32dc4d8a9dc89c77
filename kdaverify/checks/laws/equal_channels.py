"""One gate for all channels of a head: the gated delta rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def equal_channels(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 with g_t the same number in every channel."""
    own = problem.inputs()
    gated = replace(own, g=own.g[..., :1].expand_as(own.g).contiguous())
    return outcomes(
        adapter, gated, lambda: execute(adapter, gated, adapter.exposes(problem)).outputs
    )


EQUAL_CHANNELS: Final = Law(
    name="equal-channels",
    statement="the same gate in every channel of a head: the gated delta rule",
    section="2, where channels agree",
    exists_for=(
        "paths for gates of one number a head, offsets shared by channels that happen to agree"
        " (GA5)"
    ),
    check=equal_channels,
    untestable=lambda problem: (
        None if problem.gates == "channel" else "channels share a gate already"
    ),
    judged=True,
)
