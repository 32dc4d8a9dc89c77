"""What is said of the smallest case that still fails, beside the case that was tested."""

from __future__ import annotations

import json
import shlex
from typing import Final

from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.verdicts.verdict import Verdict

NO_TIME: Final = "not minimised: no time was left for it (--diagnosis gives more)"
FIXED: Final = "not minimised: its problems keep their size"
SMALLEST: Final = (
    "not made smaller: in its share of the time no smaller case was found that fails in the same"
    " way (--diagnosis gives more)"
)


def minimised_line(verdict: Verdict, smallest: PropertyCase) -> str:
    """The line that replays the smallest case, or why there is none.

    Args:
        verdict: of the case as it was tested.
        smallest: what was found.
    """
    if not PROPERTIES[verdict.property].shrinks:
        return FIXED
    if smallest.problem.to_json() == verdict.problem:
        return SMALLEST
    return (
        "smallest case that fails in the same way,"
        f" {smallest.problem.describe()}:\n{replay_line(verdict.replay, smallest)}"
    )


def replay_line(line: str, case: PropertyCase) -> str:
    """The line that replays a verdict, for another problem of its property."""
    words = shlex.split(line)
    if "--detail" in words:
        words[words.index("--detail") + 1] = json.dumps(dict(case.detail), sort_keys=True)
    return shlex.join([*words[:-1], case.problem.to_json()])
