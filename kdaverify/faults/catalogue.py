"""Every fault by id, and those that are not re-created."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.faults import (
    backward,
    backward_pairs,
    conv_backward,
    conv_sizes,
    conv_states,
    conv_taps,
    cumsum,
    decode,
    entry,
    gated_calls,
    gated_norm,
    gates,
    layer,
    layer_cache,
    layer_growth,
    layout,
    norm_shapes,
    normalisation,
    output,
    packing,
    resume,
    scalar_decay,
    scalar_decay_backward,
    scores,
    solve,
    state,
    state_races,
    wy,
)
from kdaverify.faults.attention import backward as attention_backward
from kdaverify.faults.attention import (
    copies,
    crowds,
    far,
    head_widths,
    late_keys,
    leftovers,
    lists,
    masks,
    pages,
    ports,
    prefixes,
    quantised,
    sizes,
    sizes_in_turn,
    sources,
    special_rows,
    special_sizes,
    splits,
    views,
    wide,
    wrapper,
)
from kdaverify.faults.attention import scores as attention_scores
from kdaverify.faults.attention import sinks as attention_sinks
from kdaverify.faults.fault import Fault
from kdaverify.faults.hosts import host_of
from kdaverify.faults.planted.catalogue import PLANTED

MODULES: Final = (
    gates, normalisation, cumsum, scores, solve, wy, state, state_races, output, decode, backward,
    backward_pairs, packing, resume, layout, entry, scalar_decay, scalar_decay_backward,
    gated_calls, conv_taps, conv_states, conv_backward, conv_sizes, gated_norm, norm_shapes, layer,
    layer_cache, layer_growth, attention_scores, masks, pages, splits, attention_backward,
    attention_sinks, wrapper, sizes, special_sizes, prefixes, leftovers, wide, head_widths, crowds,
    views, copies, sources, far, late_keys, sizes_in_turn,
    special_rows, ports, lists, quantised,
)  # fmt: skip
"""One for each stage, in the order of the pipeline; then those of the other operators."""

FAULTS: Final = MappingProxyType({fault.id: fault for stage in MODULES for fault in stage.FAULTS})
"""The catalogue."""


@dataclass(frozen=True)
class Gap:
    """An entry of the survey that is not re-created, and why."""

    id: str
    reference: str
    why: str


NOT_RECREATED: Final = (
    Gap(
        "SO3",
        "fla-org/fla#673, @370fe304",
        "rows past the end of a sequence are read into rows past the end of the result, which"
        " nothing reads: every output is the same, to the bit, unless the memory behind a sequence"
        " holds NaN",
    ),
    Gap(
        "P3",
        "fla-org/fla#483",
        "decode leaves keys unnormalised that the chunk normalises: a call here brings keys as the"
        " recurrence reads them, and the embedded kernel normalises none",
    ),
    Gap(
        "GDN-D28",
        "fla-org/fla#844",
        "offsets beside several batch entries are taken, and those of the first entry are used for"
        " all: no call of a pack has more than one entry here, so no kernel is given any",
    ),
    Gap(
        "NORM-N3",
        "fla-org/fla#1071",
        "the gradient of the weight of the linear layer that follows: a norm has no such weight,"
        " everything that it returns itself is right",
    ),
)


def faulty(spec: str) -> Adapter:
    """The implementation that `spec` names.

    Args:
        spec: ID or ID@STRENGTH, such as H1 or H1@0.25.
    Raises:
        AdapterError: no such fault, or no such strength of it.
    """
    name, at, given = spec.partition("@")
    for gap in NOT_RECREATED:
        if gap.id == name:
            raise AdapterError(f"fault:{name}: not re-created: {gap.why}")
    if name in PLANTED and not at:
        return PLANTED[name].adapter()
    if name not in FAULTS:
        close = difflib.get_close_matches(name, [*FAULTS, *PLANTED], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise AdapterError(f"no fault named {name!r}; {hint}`kdaverify list faults` names them")
    fault = FAULTS[name]
    return host_of(fault).faulty(fault, _strength(fault, given) if at else 1.0)


def _strength(fault: Fault, given: str) -> float:
    try:
        strength = float(given)
    except ValueError:
        strength = 0.0
    if not 0 < strength <= 1:
        raise AdapterError(f"fault:{fault.id}@{given}: wanted a strength of (0, 1], such as 0.25")
    if strength != 1 and not fault.graded:
        raise AdapterError(f"fault:{fault.id}@{given}: it is there or not; leave out @{given}")
    return strength
