"""Probes of lengths: what a kernel does with one token, with none,
and with one more than its chunks hold.
"""

from __future__ import annotations

from kdaverify.problems.probes.probe import Probe, posed

PROBES = (
    Probe(
        name="single-tokens",
        about="five sequences of one token, each with a state whose row it overwrites",
        exposes="one-token tails that skip S^T k, states of other sequences (H10, S5, H25)",
        problem=posed(lengths=(1, 1, 1, 1, 1), state="dyadic"),
        measures=("spacing",),
    ),
    Probe(
        name="empty-sequences",
        about="empty sequences first, in the middle and last: their S_T is their S_0, bit by bit",
        exposes=(
            "states of empty sequences zeroed, left unwritten, or those of a neighbour (V4, V6, V7)"
        ),
        problem=posed(lengths=(0, 3, 0, 0, 17, 0), state="dyadic"),
        measures=("spacing",),
    ),
    Probe(
        name="chunks-plus-one",
        about=(
            "129 = 2 * 64 + 1 tokens of one key and one value: the row past two full chunks finds"
            " nothing left to write"
        ),
        exposes="a tail of one row that skips the carried state (H10, O2, B17)",
        problem=posed(T=129, key="flat", value="repeated"),
        measures=("spacing",),
    ),
)
