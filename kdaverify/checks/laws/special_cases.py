"""Laws of calls that are a simpler recurrence: no state, no decay, one gate a head."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.forward import forward
from kdaverify.checks.laws.law import Law, ends_excluded
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def absent_state(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 4. The call without a state comes after one with another state: what that left
    behind is not to be read.
    """
    before, own = problem.replace(state="random").inputs(), problem.replace(state="absent").inputs()
    exposed = adapter.exposes(problem)

    def absent() -> dict[str, Tensor]:
        execute(adapter, before, exposed)
        return execute(adapter, own, exposed).outputs

    def zeros() -> dict[str, Tensor]:
        return execute(adapter, replace(own, initial_state=own.state), exposed).outputs

    return outcomes(adapter, own, absent if problem.state == "absent" else zeros)


ABSENT_STATE: Final = Law(
    name="absent-state",
    statement=(
        "no initial state, after a call that had one, and a state of zeros: the same o and S_T"
    ),
    section="7, law 4",
    exists_for=(
        "an absent state that is whatever memory holds, or another request's; paths that an absent"
        " state takes (S3, S11)"
    ),
    check=absent_state,
    becomes=lambda problem: tuple(problem.replace(state=state) for state in ("random", "absent")),
    wanted={"state": ("absent", "zero")},
    judged=True,
)


def no_decay(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 10."""
    return forward(adapter, problem.replace(gate="zero"))


NO_DECAY: Final = Law(
    name="no-decay",
    statement="g = 0: the plain delta rule",
    section="7, law 10",
    exists_for=(
        "decay differences of exactly 0 dropped or masked, constants inside the logarithm or the"
        " exponential (GA15, DESIGN-e)"
    ),
    check=no_decay,
    untestable=lambda problem: ends_excluded(problem, gate=True),
    becomes=lambda problem: (problem.replace(gate="zero"),),
    judged=True,
)


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
