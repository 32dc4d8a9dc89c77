"""Where a failing case goes wrong first: its stages, on exact inputs, then on its own.

Apart from `location`, with which rows are read: this loads all that runs kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.fault import reported
from kdaverify.checks.forward import implementation_of
from kdaverify.checks.location import FEEDS, Location, Step, conclude
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.status import Status
from kdaverify.operator import operator_of


def localise(
    adapter: Adapter, problem: Any, property_name: str, detail: Mapping[str, Any]
) -> Location:
    """The first stage outside its tolerance, or why none is named; stages cannot make it raise.

    Args:
        property_name, detail: what was tested on the problem; of a variant its own stages.
    """
    return conclude(steps(adapter, problem, property_name, detail), property_name)


def steps(
    adapter: Adapter, problem: Any, property_name: str, detail: Mapping[str, Any]
) -> Iterator[Step]:
    """All that can be judged of a property's stages, in order; the last step may say why not."""
    feed = FEEDS[0]
    try:
        judged = implementation_of(adapter, detail)
        both = PROPERTIES[property_name].both_passes
        for step in operator_of(problem).stage_steps(judged, problem, both_passes=both):
            feed = step.feed
            yield step
    # the verdict that is to be localised must not be lost
    except Exception as error:  # noqa: BLE001
        yield Step(feed, "", Outcome("call", Status.SKIP, reported(error)))
