"""Outputs that are wrong because memory was never written:
shown by a call in which all fresh memory is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import APART, Yardstick


def unwritten(
    kernel: KernelErrors, call: Callable[[], KernelErrors], yard: Yardstick
) -> tuple[str, ...]:
    """The wrong outputs, if every wrong element of theirs comes from unwritten memory; () if any
    has another cause.

    Math: an element comes from unwritten memory if it is finite, and is NaN when the same call runs
    on fresh memory full of NaN. One that is NaN in both calls may have been computed.

    Args:
        kernel: the answer to the plain call.
        call: the same call again.
    """
    with poisoned_allocations():
        poisoned = call()
    if poisoned.outputs.keys() != kernel.outputs.keys():
        return ()
    found = list[str]()
    for name, scale in yard.items():
        if name not in kernel.outputs:
            continue
        mine, marked, exact = (
            scale.counted(x) for x in (kernel.outputs[name], poisoned.outputs[name], scale.exact)
        )
        wrong = ~((mine - exact).abs() <= APART * scale.largest)
        if bool((wrong & ~(mine.isfinite() & marked.isnan())).any()):
            return ()
        found += [name] if bool(wrong.any()) else []
    return tuple(found)
