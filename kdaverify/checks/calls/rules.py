"""All rules, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kdaverify.checks.calls import (
    after_many,
    alternating,
    autograd,
    behind,
    callers,
    chained,
    chunk_counts,
    combined_sizes,
    copies,
    earlier,
    fed_back,
    frozen,
    gate_parameters,
    head_counts,
    heads,
    interleaved,
    keys,
    late,
    late_keys,
    lifetimes,
    long_rows,
    long_sums,
    multiples,
    neighbours,
    neutral,
    nonfinite,
    packs,
    prefixes,
    repeated,
    short_packs,
    sizes_in_turn,
    sources,
    steps,
    surroundings,
    unlike,
    untracked,
    views,
)
from kdaverify.checks.calls.rule import CallRule

FIRST: Final = (
    *repeated.RULES, *steps.RULES, *lifetimes.RULES, *alternating.RULES, *autograd.RULES,
    *repeated.OF_FIRST_CALLS, *views.RULES, *packs.RULES, *surroundings.RULES, *interleaved.RULES,
    *untracked.RULES, *keys.RULES,
)  # fmt: skip
OF_LONG_CALLS: Final = (
    "view-sliced", "view-sliced-backward", "padding", "padding-backward", "unwritten",
    "unwritten-backward",
)  # fmt: skip
"""Rules about memory that are tested at over a thousand tokens too: there a kernel takes another
path, with other tiles and tails."""


def of_long_calls(rule: CallRule) -> CallRule:
    """The same of calls of more than a thousand tokens, in acceptance."""
    forward = rule.name.removesuffix("-backward")
    return replace(
        rule,
        name=f"{forward}-long{rule.name.removeprefix(forward)}",
        about=f"{rule.about}: at 1,024 tokens and more, K = V = 64",
        size="long",
        memory=False,
        once=True,
        costly=True,
        profile="acceptance",
    )


LATER: Final = (
    *frozen.RULES, *views.OF_EQUAL_SIZES, *untracked.OF_CHUNKS, *late.RULES, *copies.RULES,
    *sources.RULES, *multiples.RULES, *copies.TWICE, *views.OF_STATES, *chained.RULES,
    *long_rows.RULES, *callers.RULES, *views.IN_TABLES, *neighbours.RULES, *earlier.RULES,
    *copies.IN_A_ROW, *late_keys.RULES, *views.OF_STEPS, *views.EQUAL_STEPS, *unlike.RULES,
    *copies.AFTER_MORE, *heads.RULES, *callers.CANCELLING, *chained.ZEROS, *views.OF_FIRST_ENTRIES,
    *behind.RULES, *lifetimes.OF_MANY, *steps.AFTER_MORE, *prefixes.RULES, *short_packs.RULES,
    *combined_sizes.RULES, *head_counts.RULES, *neutral.RULES, *fed_back.RULES,
    *interleaved.OF_PACKS, *callers.EDITED, *earlier.EVALUATED_FIRST, *nonfinite.RULES,
    *earlier.MICRO, *long_sums.RULES, *sizes_in_turn.RULES, *chunk_counts.RULES,
    *untracked.OF_PACKED_CHUNKS, *after_many.RULES, *frozen.OF_CHUNKS,
    *callers.UNEVEN_ROWS, *repeated.OF_THREADS, *keys.OF_SPLITS,
    *heads.OF_GRADIENTS, *late.OF_PACKS, *head_counts.OF_LONG,
    *copies.OF_LARGE_STATES, *lifetimes.OF_STEPS, *late.OF_EARLY, *earlier.ONE_LOSS,
    *interleaved.OF_LAYERS, *unlike.OF_STRETCHES, *fed_back.WHOLE, *gate_parameters.RULES,
    *surroundings.OF_TYPES, *lifetimes.OF_MANY_STEPS, *keys.GROWN,
)  # fmt: skip
"""Behind the others: widths and formats of a rule go by its number, and its faults are found with
those."""


def _all_rules() -> Iterator[CallRule]:
    for rule in FIRST:
        yield rule
        if rule.name in OF_LONG_CALLS:
            yield of_long_calls(rule)
    yield from LATER


RULES: Final = MappingProxyType({rule.name: rule for rule in _all_rules()})
