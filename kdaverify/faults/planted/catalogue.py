"""The planted faults by id, with their right twins and the question that shows each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls.rules import RULES
from kdaverify.faults.planted import (
    between,
    callers,
    captured,
    coincident,
    copies,
    depth,
    entries,
    exchanged,
    fused_padding,
    gate_parameters,
    head_gates,
    heads,
    late,
    magnitudes,
    overflow,
    places,
    races,
    segments,
    shapes,
    steps,
    unlike,
    wide,
    widths,
)
from kdaverify.faults.planted.broken_calls import (
    adds_to_unwritten,
    as_if_dense,
    one_buffer,
    port,
    remembers,
    right,
)
from kdaverify.faults.planted.by_ids import BROKEN_BY_IDS, OF_FEW_BITS, RIGHT_BY_IDS
from kdaverify.faults.planted.questions import AUTOGRAD_RULES
from kdaverify.faults.planted.rulebreakers import BROKEN, twin

LAST: Final = "acceptance"
"""The profile that has all questions of every kind."""


@dataclass(frozen=True)
class Planted:
    """One fault.

    Args:
        id: the kind's letters and a number, for `--impl fault:ID`.
        question: a key of QUESTIONS.
        trigger: what is wrong, or on which inputs it shows.
        profile: the smallest that has questions which show it.
        kernel: makes the faulty implementation.
        right: makes its twin without the fault.
    """

    id: str
    question: str
    trigger: str
    profile: str
    kernel: Callable[[], Adapter]
    right: Callable[[], Adapter]

    def adapter(self) -> Adapter:
        """The faulty implementation, named as `--impl` names it."""
        made = self.kernel()
        made.name = f"fault:{self.id}"
        return made


Made = Callable[[], Adapter]
_LONG: Final = {
    f"{rule}, in calls of over a thousand tokens": make
    for rule, make in BROKEN.items()
    if RULES[rule].size == "long"
}
_BY_IDS: Final = {
    name: make for faults in (*BROKEN_BY_IDS.values(), OF_FEW_BITS) for name, make in faults.items()
}
_ISOLATED: Final[Mapping[str, Made]] = {
    "all calls share one buffer": partial(port, one_buffer, isolate=True),
    "offsets are cached by tensor object": partial(
        port, remembers(lambda x: id(x.cu_seqlens), "cu_seqlens"), isolate=True
    ),
    "values are cached by tensor object": partial(
        port, remembers(lambda x: id(x.v), "v"), isolate=True
    ),
    "k is read by its address and shape alone": partial(port, as_if_dense, isolate=True),
    "o is added to unwritten memory": partial(port, adds_to_unwritten, isolate=True),
}

_OF_AUTOGRAD: Final = {RULES[rule].exposes: BROKEN[rule] for rule in AUTOGRAD_RULES}


def _named(
    letters: str,
    question: str,
    profile: str,
    faults: Mapping[str, Made],
    right: Callable[[Adapter], Adapter],
) -> Iterator[Planted]:
    for number, (trigger, make) in enumerate(faults.items(), 1):
        yield Planted(
            f"{letters}{number}", question, trigger, profile, make, lambda make=make: right(make())
        )


def _shaped(
    letters: str, question: str, faults: Mapping[str, shapes.ShapeFault]
) -> Iterator[Planted]:
    for number, (trigger, fault) in enumerate(faults.items(), 1):
        yield Planted(
            f"{letters}{number}",
            question,
            trigger,
            fault.profile,
            partial(shapes.Shaped, fault),
            lambda: shapes.RIGHT,
        )


def _overflowing() -> Iterator[Planted]:
    for number, (trigger, fault) in enumerate(overflow.FAULTS.items(), 1):
        make = partial(overflow.Overflowing, fault.kernel, fault.change)
        yield Planted(
            f"OVER{number}",
            "overflow",
            trigger,
            "smoke",
            make,
            partial(overflow.Overflowing, fault.kernel, overflow.unchanged),
        )


PLANTED: Final[Mapping[str, Planted]] = MappingProxyType(
    {
        fault.id: fault
        for fault in (
            *_shaped("COMB", "combinations", shapes.FAULTS),
            *_shaped("WIDE", "widths", wide.FAULTS),
            *_shaped("MAG", "magnitudes", magnitudes.FAULTS),
            *_named(
                "RANGE",
                "magnitudes",
                "smoke",
                magnitudes.STATES | magnitudes.OF_STEPS,
                lambda _: magnitudes.OfStates(),
            ),
            *_named("NORMS", "magnitudes", "smoke", magnitudes.KEYS, twin),
            *_named("MEM", "memory", LAST, {**widths.FAULTS, **_LONG}, twin),
            *_named("HEAD", "memory", "smoke", head_gates.OF_MEMORY, head_gates.twin),
            *_named("FUSE", "memory", "smoke", fused_padding.FAULTS, fused_padding.twin),
            *_named("ROWS", "entries", "smoke", fused_padding.OF_ROWS, fused_padding.twin),
            *_named("RACE", "repeats", LAST, {**races.FORWARD, **races.BACKWARD}, twin),
            *_named(
                "PROC",
                "process",
                "smoke",
                _ISOLATED,
                lambda _: port(lambda x, _: right(x), isolate=True),
            ),
            *_overflowing(),
            *_named("DEEP", "depth", "smoke", depth.FAULTS, twin),
            *_named("ENT", "entries", "smoke", entries.FAULTS, lambda _: entries.right()),
            *_named("AUTO", "autograd", "smoke", _OF_AUTOGRAD, twin),
            *_named("GRAD", "autograd", "smoke", head_gates.OF_AUTOGRAD, head_gates.twin),
            *_named("PARAM", "autograd", "smoke", gate_parameters.FAULTS, gate_parameters.twin),
            *_named("SIZE", "coincidences", "smoke", coincident.FAULTS, twin),
            *_named("AXES", "coincidences", "smoke", exchanged.FAULTS, twin),
            *_named("LATE", "late", "smoke", late.FAULTS, twin),
            *_named("CHUNKS", "late", "smoke", segments.FAULTS, twin),
            *_named("COPY", "copies", "smoke", copies.FAULTS, twin),
            *_named("UNLIKE", "copies", "smoke", unlike.FAULTS, twin),
            *_named("HEADS", "copies", "smoke", heads.FAULTS, twin),
            *_named("STEP", "copies", "smoke", steps.FAULTS, twin),
            *_named("PLACE", "places", "smoke", places.FAULTS, twin),
            *_named("CALLER", "callers", "smoke", callers.FAULTS, twin),
            *_named("BETWEEN", "callers", "smoke", between.FAULTS, twin),
            *_named("MANY", "callers", "smoke", captured.FAULTS, twin),
            *_named("IDS", "ids", "smoke", _BY_IDS, lambda _: RIGHT_BY_IDS),
        )
    }
)
"""By id."""
