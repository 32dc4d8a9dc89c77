"""The place of a fault among the stages of a kernel, concluded from stages judged one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.status import Status

if TYPE_CHECKING:
    from kdaverify.checks.outcome import Outcome

Feed = Literal["exact", "own"]
FEEDS: Final[tuple[Feed, ...]] = ("exact", "own")
"""What a stage is given: the exact tensors of earlier stages, rounded as the contract stores them;
or what the kernel's own stages gave."""
_INPUTS: Final[Mapping[Feed, str]] = {"exact": "on exact inputs", "own": "on its own inputs"}


class NoStage(StrEnum):
    """What stands for the name of a stage where none can be given."""

    NONE_EXPOSED = "none exposed"
    ALL_WITHIN = "all within budget"
    NOT_JUDGED = "not judged"  # some of them, or all; those judged are within their tolerances


@dataclass(frozen=True)
class Location:
    """Where a case goes wrong first.

    Args:
        stage: the first stage outside its tolerance, as `stage_name` has it, or a NoStage.
        reported: what of it is off and where, or what was judged and what was not; one line.
    """

    stage: str
    reported: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """Those of a verdict."""
        return {"stage": str(self.stage), "located": self.reported}


@dataclass(frozen=True)
class Softened:
    """A problem whose stages were judged on another one in its place.

    Args:
        because: what of the problem no stage can be given.
        instead: what they were judged on.
    """

    because: str
    instead: str


@dataclass(frozen=True)
class Step:
    """One tensor of one stage, or one equation between its tensors, as it was judged.

    Args:
        feed: what the stage was given.
        name: the stage, as `stage_name` has it; "" for what concerns the problem as a whole.
        outcome: what came of it; its output is the stage, a dot, and what was judged.
        softened: where it was not the problem itself that the stage was judged on.
    """

    feed: Feed
    name: str
    outcome: Outcome
    softened: Softened | None = None

    @property
    def stage(self) -> str:
        return self.outcome.output.partition(".")[0]

    @property
    def judged(self) -> str:
        """The tensor or the equation; "" for what concerns the whole stage."""
        return self.outcome.output.partition(".")[2]


def conclude(found: Iterable[Step], property_name: str) -> Location:
    """The first stage outside its tolerance; no more steps are taken than that needs."""
    said = PROPERTIES[property_name].followed
    passed: dict[str, None] = {}
    left: dict[str, None] = {}
    softened = ""
    for step in found:
        first = step.outcome.message.partition("\n")[0].removeprefix("stage ")
        if step.softened:
            left[step.softened.because] = None
            softened = step.softened.instead
        if step.outcome.status.rejects:
            off = first.removeprefix(f"{step.stage}: ")
            return Location(step.name, _joined(_INPUTS[step.feed], off, softened, said))
        if step.outcome.status is Status.PASS:
            passed[step.stage] = None
        else:
            left[first] = None
    within = ", ".join(passed)
    if left:
        judged = f"within tolerance: {within}" if within else ""
        return Location(NoStage.NOT_JUDGED, _joined(next(iter(left)), judged, softened, said))
    if passed:
        return Location(NoStage.ALL_WITHIN, _joined(within, said))
    return Location(NoStage.NONE_EXPOSED)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
