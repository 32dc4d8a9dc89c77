"""Probes of the triangular system: coherent keys, where powers of it grow,
and blocks of it, which may be lost.
"""

from __future__ import annotations

from kdaverify.problems.probes.probe import Probe, posed

_INVERSES = (
    "inverses by doubling or Newton, over the chunk or over blocks, in the operands' format (SO1,"
    " SO8)"
)

PROBES = (
    *(
        Probe(
            name=f"coherent-keys-{rho}",
            about=f"a full chunk of keys of coherence {rho}, beta 1, slow decay",
            exposes=_INVERSES,
            problem=posed(T=64, K=32, key=f"coherent-{rho}", gate="slow", value="normal"),
        )
        for rho in (0.5, 0.9)
    ),
    Probe(
        name="identical-tokens",
        about=(
            "one key of norm exactly 1, one value, beta 1, no decay: the first token writes all,"
            " the others nothing"
        ),
        exposes=(
            "truncated or doubling inverses: powers of the matrix of ones reach 1e18 (SO1, SO6)"
        ),
        problem=posed(T=64, key="flat", value="repeated"),
        measures=("spacing",),
    ),
    Probe(
        name="sub-block-edges",
        about=(
            "the same in sequences that end beside the edges of 16-row blocks: 15, 16, 17, 31, 32,"
            " 33, 47, 48 and 49 tokens"
        ),
        exposes=(
            "blocks of the system lost, or taken from past the end, where blocks of 16 meet (A3,"
            " SO4)"
        ),
        problem=posed(lengths=(15, 16, 17, 31, 32, 33, 47, 48, 49), key="flat", value="repeated"),
        measures=("spacing",),
    ),
)
