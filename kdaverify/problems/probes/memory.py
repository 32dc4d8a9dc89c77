"""Probes of what is carried: a memory, kept for a long time or handed over,
shows every lost bit.
"""

from __future__ import annotations

from dataclasses import replace

from kdaverify.problems.probes.probe import Probe, posed

_LONG_MEMORY = Probe(
    name="long-memory",
    about=(
        "one write by 16 equal key entries at the end of the first chunk, then decays around"
        " 0.99992 and beta 0, T = 257"
    ),
    exposes=(
        "decay, cumulative gate or state rounded to 16 bits, and their bias (C2, H11, H12, S12)"
    ),
    problem=posed(T=257, key="flat", gate="memory", beta="one-write"),
    measures=("memory", "bias"),
)

PROBES = (
    _LONG_MEMORY,
    replace(
        _LONG_MEMORY,
        name="long-memory-4096",
        about="long-memory over 64 chunks, T = 4096",
        exposes="decay or state rounded to 16 bits, and their bias (C2, H11, H12, S12)",
        problem=_LONG_MEMORY.problem.replace(T=4096),
        profile="acceptance",
    ),
    Probe(
        name="kept-state",
        about="beta 0 and no decay over two chunks: S_T is S_0, with all its bits",
        exposes=(
            "state carried in fewer bits than declared: bf16, fp16, TF32, fp32 for fp64 (H11, H12,"
            " S12)"
        ),
        problem=posed(T=65, key="random", beta="zero", state="random"),
        measures=("spacing",),
    ),
    Probe(
        name="nine-bit-state",
        about=(
            "a state of 257 times powers of two, beta 0, no decay, the run cut at token 17 and"
            " resumed: S_T is S_0"
        ),
        exposes="checkpoint of the state in bf16 (H11, S12)",
        problem=posed(T=33, key="random", beta="zero", state="nine-bits"),
        measures=("spacing",),
        cut=17,
    ),
)
