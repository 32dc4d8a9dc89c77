"""Which combinations a profile judges of an implementation, and which of them were judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kdaverify.verdicts.seal import Covered
from oracles.autograd import FORWARD_ONLY

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.problems.combinations import CombinationRow, Direction, Space
    from kdaverify.verdicts.verdict import Verdict

_FORWARD: Final = {"smoke": (0.3, 1.0), "acceptance": (0.3, 1.0), "nightly": (1.2, 8.0)}
_BACKWARD: Final = {"smoke": (0.05, 0.3), "acceptance": (0.1, 0.45), "nightly": (0.3, 3.0)}
"""The largest cost of a row, in seconds, for formats judged in balls and in float64: what leaves
every pair possible in smoke (1,057 tokens of one head of 128 x 16 forward, of 16 x 16 backward),
and in acceptance every triple but those of widths, heads and lengths that are all
large: with twice as much for 16-bit formats there are 0.2 % more triples, and acceptance of eager
takes 1.2 times as long."""
INTERPRETED: Final = 4
"""Of interpreted kernels one row in so many is judged: a thousand tokens take minutes there."""


def rows(adapter: Adapter, profile: str) -> tuple[CombinationRow, ...]:
    """The rows that a profile judges: covering arrays of pairs in smoke, of triples later."""
    made = _array(adapter, profile)
    return made[::INTERPRETED] if adapter.environment()["mode"] == "interpreted" else made


def covered(adapter: Adapter, profile: str, verdicts: Sequence[Verdict]) -> tuple[Covered, ...]:
    """How many pairs, and triples where the profile has them, were judged.

    Args:
        verdicts: of the session; one that is a skip covers nothing. Where a kernel turned out to
            have no backward, combinations with a direction of gradients are none.
    """
    from kdaverify.operator import problem_from_json
    from kdaverify.problems import Problem
    from kdaverify.problems.combinations import STRENGTH, CombinationRow, coverage

    own = [one for one in verdicts if one.property == "combined"]
    tested = {(one.problem, one.detail["direction"]) for one in own if one.status.judged}
    judged = [
        CombinationRow(problem, direction)
        for implementation_of, direction in tested
        if isinstance(problem := problem_from_json(implementation_of), Problem)
    ]
    lacks = any(one.message.startswith(FORWARD_ONLY) for one in own)
    possible = [
        row
        for row in _array(adapter, profile)
        if not (lacks and row.direction.startswith("gradients"))
    ]
    return tuple(
        Covered(strength, *coverage(judged, possible, strength))
        for strength in range(2, STRENGTH[profile] + 1)
    )


@lru_cache(maxsize=8)
def _array(adapter: Adapter, profile: str) -> tuple[CombinationRow, ...]:
    from kdaverify.problems.combinations import STRENGTH

    return tuple(space(adapter, profile).rows(STRENGTH[profile]))


def space(adapter: Adapter, profile: str) -> Space:
    """What can be combined for an implementation."""
    from kdaverify.checks.resume import cuts_within
    from kdaverify.problems.combinations import Space

    def most_expensive(dtype: str, direction: Direction) -> float:
        limits = (_BACKWARD if direction.startswith("gradients") else _FORWARD)[profile]
        return limits[dtype in ("bf16", "fp16")]

    dense, packed = (_directions(adapter, lengths) for lengths in (None, (1,)))
    return Space(
        adapter.domain,
        adapter.dtypes,
        dense,
        packed,
        most_expensive,
        lambda problem: bool(cuts_within(problem, adapter.domain)),
        adapter.compiled,
        adapter.backward_domain,
    )


def _directions(adapter: Adapter, lengths: tuple[int, ...] | None) -> tuple[Direction, ...]:
    """What can be computed of a dense problem, or of a pack."""
    from kdaverify.problems.combinations import plain
    from oracles.tensors import OUTPUTS

    states = {*OUTPUTS} <= {*adapter.exposes(plain(adapter.dtypes[0]).replace(lengths=lengths))}
    can: dict[Direction, bool] = {
        "forward": True,
        "resume": states and lengths is None and adapter.domain.states,
        "gradients of o": adapter.differentiable,
        "gradients of both": adapter.differentiable and states,
    }
    return tuple(direction for direction, possible in can.items() if possible)
