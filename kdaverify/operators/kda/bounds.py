"""Which problems a profile generates for an implementation: cost, widths, domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kdaverify.operators.kda.axes import takes_real_sizes

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.problems import Bounds

REAL_SIZES: Final = 8.0
"""How many times the cost of a random problem may grow for kernels on an accelerator."""
INTERPRETED: Final = 1 / 3
"""And what is left of it for interpreted ones, whose tokens cost a thousand times what compiled
ones do: still two chunks."""


def bounds_of(adapter: Adapter, chosen: Mapping[str, Any], profile: str) -> Bounds:
    """The bounds of one test.

    Args:
        chosen: the axes of the test; that of the format counts.
    """
    from kdaverify.problems.profiles import cost_of

    cost = cost_of(profile)
    dtype = next(
        (chosen[axis] for axis in ("dtype", "staged", "staged_backward") if axis in chosen), None
    )
    # On an accelerator a token of full width costs little, and a case of a single chunk shows
    # little.
    if dtype in adapter.dtypes and takes_real_sizes(adapter, dtype):
        cost *= REAL_SIZES
    if adapter.environment()["mode"] == "interpreted":
        cost *= INTERPRETED
    return {
        "max_cost": cost,
        "widths": adapter.widths,
        "domain": adapter.domain,
        "compiled": adapter.compiled,
    }
