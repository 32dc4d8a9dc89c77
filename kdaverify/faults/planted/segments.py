"""Faults of a number of chunks: a last segment of one chunk starts from another state than that
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import CHUNK, Outputs, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

SEGMENT: Final = 6
LARGE: Final = 24
"""Chunks between two states that are kept."""


def _alone(x: Inputs, segment: int) -> Iterator[tuple[int, slice, Inputs]]:
    """Of sequences whose last segment has one chunk and is not their first: the entry and the rows
    of that chunk, and its call from the given state.
    """
    for number, (start, length) in enumerate(zip(x.starts, x.lengths, strict=True)):
        chunks = -(-length // CHUNK)
        if chunks < 2 or chunks % segment != 1:
            continue
        entry, first = divmod(start, x.T)
        rows = slice(first + (chunks - 1) * CHUNK, first + length)
        tokens = {
            name: getattr(x, name)[entry : entry + 1, rows] for name in ("q", "k", "v", "g", "beta")
        }
        state = None if x.initial_state is None else x.initial_state[number : number + 1]
        yield entry, rows, replace(x, **tokens, initial_state=state, cu_seqlens=None)


def segments_from_the_start(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Outputs of such a segment are those behind the given state."""
    o, final = right(x)
    o = o.clone()
    for entry, rows, chunk in _alone(x, SEGMENT):
        o[entry, rows] = right(chunk)[0][0]
    return o, final


def derived_from_the_start(
    x: Inputs, given: Cotangents, _: dict[Any, Any], *, segment: int = SEGMENT
) -> Gradients[Any]:
    """The backward makes states of such a segment again from the given one."""
    found = EAGER.gradients(x, given)
    if given.do is None or found.dk is None:
        return found
    dk = found.dk.clone()
    for entry, rows, chunk in _alone(x, segment):
        do = given.do[entry : entry + 1, rows]
        dk[entry, rows] = EAGER.gradients(chunk, Cotangents(do, None)).dk[0]
    return replace(found, dk=dk)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a last segment of one chunk starts from the given state": lambda: port(
        segments_from_the_start
    ),
    "the same in a backward that makes states again": lambda: Derived(derived_from_the_start),
    "the same in a backward, of segments of 24 chunks": lambda: Derived(
        partial(derived_from_the_start, segment=LARGE)
    ),
}
"""By what is wrong."""
