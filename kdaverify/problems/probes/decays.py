"""Probes of decay: deep, sudden, at the very end, or alone."""

from __future__ import annotations

from kdaverify.problems.probes.probe import Probe, posed

PROBES = (
    Probe(
        name="deep-decay",
        about=(
            "63 steps of about -0.5 after a write to one channel, 64 on the state of the others:"
            " exp(-32) is left, row by row"
        ),
        exposes="exponents clamped at -20, or any bound above -31 (GA17, GA18)",
        problem=posed(T=64, gate="deep", beta="sparse", state="random"),
        measures=("memory",),
    ),
    Probe(
        name="pure-decay",
        about=(
            "beta 0, 17 steps of a trained gate on a state of all bits: S_T is exp(sum of g) S_0,"
            " row by row"
        ),
        exposes=(
            "cumulative gate or decay rounded to 16 bits, writes in spite of beta 0, decay along V"
            " (B18, H2, H29, P8)"
        ),
        problem=posed(T=17, key="random", beta="zero", gate="log-sigmoid", state="random"),
        measures=("memory",),
    ),
    Probe(
        name="hard-reset",
        about=(
            "one step of -inf, no other decay: what is not written afterwards is exactly 0, what is"
            " written is exact"
        ),
        exposes="inf - inf after the reset, a reset by a clamped exponent (GA22, X3)",
        problem=posed(T=33, gate="reset-alone", state="dyadic", seed=3),
        measures=("spacing",),
    ),
    Probe(
        name="huge-step",
        about=(
            "one step of -1e4, no other decay: what is not written afterwards is less than every"
            " number"
        ),
        exposes=(
            "exponents clamped at -20, -80 or -88 that leave a trace of the state (GA17, GA18,"
            " GA22)"
        ),
        problem=posed(T=33, gate="huge-alone", state="dyadic", seed=3),
        measures=("spacing",),
    ),
    Probe(
        name="strong-then-weak",
        about="one step of -1000 at token 8, then about -0.05 a token, among random writes",
        exposes=(
            "factors exp(-G) formed from the chunk's start, sums of gates in 16 bits (GA4, GA18,"
            " CS5, B18)"
        ),
        problem=posed(
            T=80, key="random", gate="strong-step", beta="uniform", state="random", value="normal"
        ),
    ),
    Probe(
        name="last-gate",
        about=(
            "gates of -0.5 to -1.5 at the last token, in the only row of a second chunk: S_T decays"
            " by them"
        ),
        exposes="last gate read past the end of a short chunk, or left out (H6, H7, H8)",
        problem=posed(T=65, key="random", gate="last", beta="zero", state="random"),
        measures=("memory",),
    ),
)
