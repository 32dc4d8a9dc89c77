"""The place of a fault among the stages of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
        told: what of it is off and on which inputs, or what was judged and what was not; one line.
    """

    stage: str
    told: str = ""
