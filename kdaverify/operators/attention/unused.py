"""Memory that no token lies in, or no list names: whether a kernel that fails fails for reading it.

A kernel that fails is called again with valid numbers in that memory. What it then returns decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.status import Status
from kdaverify.operators.attention.problem import FINITE, GARBAGE
from oracles.attention.calls import MlaDecodeCall

Contrast = tuple[Any, str]
Right = Callable[[Mapping[str, Tensor]], bool]
ENTRIES: Final = (
    "block_table[b, j] for j >= ceil(cache_seqlens[b] / page) is poisoned: do not read it. It holds"
    f" {GARBAGE}, as unused entries may hold anything by contract; with a valid page there the"
    " kernel"
)
SLOTS: Final = (
    "cache slots past cache_seqlens[b] hold NaN, as memory that was never written may; with finite"
    " numbers there the kernel"
)
UNNAMED: Final = (
    "cache slots that no index names hold NaN, as memory that was never written may; with finite"
    " numbers there the kernel"
)
MEND: Final = (
    "a weight of 0 times NaN is NaN: mask values before the product, or declare unused='finite' if"
    " that memory is always initialised"
)


def declares_finite(adapter: Adapter) -> bool:
    """Whether memory that no token lies in need not hold NaN."""
    return adapter.takes is not None and adapter.takes.words.get("unused") == "finite"


def valid_entries(call: MlaDecodeCall) -> MlaDecodeCall:
    """The call with page 0 in unused entries of the table."""
    page = call.cache.shape[1]
    used = -(-call.cache_seqlens.long() // page)
    unused = torch.arange(call.block_table.shape[1]) >= used[:, None]
    return replace(call, block_table=call.block_table.masked_fill(unused, 0))


def refilled(call: MlaDecodeCall, number: float) -> MlaDecodeCall:
    """The call with one number in all slots that no token lies in."""
    cache = call.cache.masked_fill(~call.used_slots[..., None, None], number)
    return replace(call, cache=cache)


def why_it_fails(adapter: Adapter, problem: Any, fault: CallError) -> str:
    """What a kernel that fails the call reads, "" if it fails without it too."""
    # another process has to be there for the next call
    if fault.status is not Status.ERROR and not (fault.status is Status.CRASH and adapter.isolated):
        return ""
    for call, said in _contrasts(problem):
        if answered(adapter, problem, call) is not None:
            return f"; {said} runs"
    return ""


def why_it_differs(
    adapter: Adapter, problem: Any, found: Mapping[str, Tensor], right: Right
) -> str | None:
    """What a kernel that returns NaN reads; None if other results are wrong too.

    Args:
        right: whether outputs are the exact ones but for roundings.
    """
    return _contrasted(adapter, problem, found, right, _contrasts(problem))


def reads_unnamed_slots(
    adapter: Adapter, problem: Any, found: Mapping[str, Tensor], right: Right
) -> str | None:
    """The same of lists: whether it reads slots that none of them names."""
    finite = problem.replace(unused="finite").inputs()
    return _contrasted(adapter, problem, found, right, ((finite, UNNAMED),))


def _contrasted(
    adapter: Adapter,
    problem: Any,
    found: Mapping[str, Tensor],
    right: Right,
    contrasts: Sequence[Contrast],
) -> str | None:
    if not any(bool(x.isnan().any()) for x in found.values()):
        return None
    for call, said in contrasts:
        other = answered(adapter, problem, call)
        if other is not None and right(other):
            mend = "" if said == ENTRIES else f"; {MEND}"
            return f"{said} is right{mend}"
    return None


def _contrasts(problem: Any) -> tuple[Contrast, ...]:
    call = problem.inputs()
    entries, slots = valid_entries(call), refilled(call, FINITE)
    both = refilled(entries, FINITE)
    together = f"{ENTRIES.removesuffix(' the kernel')}, and finite numbers in cache slots past"
    return ((entries, ENTRIES), (slots, SLOTS), (both, f"{together} cache_seqlens[b], the kernel"))


def answered(adapter: Adapter, problem: Any, call: Any) -> dict[str, Tensor] | None:
    """The outputs of a call; None where it fails."""
    try:
        return execute(adapter, call, adapter.exposes(problem)).outputs
    except CallError:
        return None
