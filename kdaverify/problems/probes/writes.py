"""Probes of what is written: v - S^T k, times beta, into the row of k."""

from __future__ import annotations

from kdaverify.problems.probes.probe import Probe, posed

PROBES = (
    Probe(
        name="converged-residual",
        about=(
            "S^T k = 4098 from rows of 8192 and 4, v = 4096, one token: each row changes by 1, and"
            " that change is what counts"
        ),
        exposes=(
            "residual, or S^T k, rounded to 16 bits before v is subtracted: all of the update is"
            " lost (GA10, H12)"
        ),
        problem=posed(T=1, key="pair", state="two-rows", value="converged"),
        measures=("update",),
    ),
    Probe(
        name="overwrite",
        about=(
            "orthonormal one-hot keys, beta 1, no decay, T = 65: each token replaces a row, the"
            " last one that of token 48"
        ),
        exposes=(
            "old memory that stays, as after a one-token tail; decay differences of exactly 0"
            " dropped (H10, GA15, O5)"
        ),
        problem=posed(T=65),
        measures=("spacing",),
    ),
    Probe(
        name="whole-value",
        about=(
            "v with all bits of its format, written once by one-hot keys and read at once: o and"
            " S_T are copies"
        ),
        exposes="operands in fewer bits than declared: TF32 or bf16 beside fp32 (H12)",
        problem=posed(T=16, value="normal"),
        measures=("spacing",),
        dtypes=("fp64", "fp32", "fp16"),
    ),
    Probe(
        name="write-strength",
        about=(
            "beta of all bits, up to the last number below 1, one write a row: S_T is beta v"
            " exactly"
        ),
        exposes="beta rounded to bf16 on its way to the update (GA10, GA12)",
        problem=posed(T=16, beta="near-one"),
        measures=("spacing",),
        dtypes=("fp64", "fp32", "fp16"),
    ),
    Probe(
        name="powers-of-two",
        about="v and S_0 times 2^-20: o and S_T are the same bits, times 2^-20",
        exposes="absolute epsilons, thresholds and tolerances (P1, X6, B25)",
        problem=posed(
            T=65, key="random", gate="log-sigmoid", beta="uniform", state="random", value="normal"
        ),
        # fp16 has no room below: its subnormals lose bits.
        dtypes=("fp64", "fp32", "bf16"),
        exponent=-20,
    ),
)
