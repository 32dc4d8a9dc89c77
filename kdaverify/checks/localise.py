"""Where a failing case goes wrong first: its stages again, one by one,
on exact inputs and then on the kernel's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.fault import told
from kdaverify.checks.location import Location, NoStage
from kdaverify.checks.options import asked_of
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.stages import FEEDS, Feed, Step, walk, walk_back
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.regimes.gate import HUGE

_RESETS: Final = "a hard reset has no finite cumulative gate to hand over"
_SOFTENED: Final = f"tested with gates of {HUGE:g} for hard resets"
_INPUTS: Final[Mapping[Feed, str]] = {"exact": "on exact inputs", "own": "on its own inputs"}


def localise(
    adapter: Adapter, problem: Problem, property_name: str, detail: Mapping[str, Any]
) -> Location:
    """The first stage outside its tolerance, or why none is named; never raises for what a stage
    does.

    Args:
        property_name, detail: what was tested on the problem; of a variant its own stages are
            tested.
    """
    return conclude(steps(adapter, problem, property_name, detail), property_name)


def steps(
    adapter: Adapter, problem: Problem, property_name: str, detail: Mapping[str, Any]
) -> Iterator[Step]:
    """Everything that can be judged of the stages behind a property, in order; where that broke
    off, the last step says why.
    """
    feed = FEEDS[0]
    try:
        asked = asked_of(adapter, detail)
        for way in (walk, walk_back) if PROPERTIES[property_name].both_passes else (walk,):
            for step in way(asked, problem):
                feed = step.feed
                yield step
    # the verdict that is to be localised must not be lost
    except Exception as error:  # noqa: BLE001
        yield Step(feed, "", Outcome("call", Status.SKIP, told(error)))


def conclude(found: Iterable[Step], property_name: str) -> Location:
    """What the steps say; no more of them are taken than that needs."""
    said = PROPERTIES[property_name].followed
    passed: dict[str, None] = {}
    left: dict[str, None] = {}
    for step in found:
        first = step.outcome.message.partition("\n")[0].removeprefix("stage ")
        if step.softened:
            left[_RESETS] = None
        if step.outcome.status.rejects:
            off = first.removeprefix(f"{step.stage}: ")
            return Location(
                step.name,
                _joined(_INPUTS[step.feed], off, _SOFTENED if step.softened else "", said),
            )
        if step.outcome.status is Status.PASS:
            passed[step.stage] = None
        else:
            left[first] = None
    within = ", ".join(passed)
    if not left:
        return (
            Location(NoStage.ALL_WITHIN, _joined(within, said))
            if passed
            else Location(NoStage.NONE_EXPOSED)
        )
    softened = _SOFTENED if _RESETS in left else ""
    return Location(
        NoStage.NOT_JUDGED,
        _joined(next(iter(left)), f"within tolerance: {within}" if within else "", softened, said),
    )


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
