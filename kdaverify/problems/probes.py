"""Exactness probes: inputs on which a single rounding shows, and how they are examined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from kdaverify.problems.axes import DTYPES
from kdaverify.problems.problem import Problem
from kdaverify.problems.profiles import PROFILES, check_profile

Measure = Literal["spacing", "memory", "update", "bias"]

ROWS = 16
COLUMNS = 8


@dataclass(frozen=True)
class Probe:
    """A named problem that shows one rounding.

    Args:
        name: unique; `kdaverify list probes` and the detail of a verdict say it.
        about: what the problem is, and what a right kernel gives.
        exposes: the fault classes it shows, with ids of the fault catalogue.
        problem: in one of `dtypes`.
        measures: how errors are measured beside the usual statistics; names of `budgets.measures`.
        dtypes: types it is tested in: those whose roundings the fault can be distinguished from.
        cut: the token at which the run is cut and resumed from its saved state; None for one run.
        exponent: of the power of two that v and S_0 are scaled by in a second run, which must give
            the same bits; 0 for one run.
        profile: the smallest profile that tests it.
    """

    name: str
    about: str
    exposes: str
    problem: Problem
    measures: tuple[Measure, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    cut: int | None = None
    exponent: int = 0
    profile: str = "smoke"

    def of(self, problem: Problem) -> Probe:
        """The same probe of its problem in another dtype, or at other widths."""
        return replace(self, problem=problem)


def posed(*, lengths: tuple[int, ...] | None = None, **fields: Any) -> Problem:
    """A narrow one-head problem, exact in every format: one-hot keys, beta 1, no decay."""
    plain: dict[str, Any] = {
        "B": 1, "H": 1, "HV": 1, "K": ROWS, "V": COLUMNS, "dtype": "bf16", "seed": 0,
        "gate": "zero", "key": "one-hot", "beta": "one", "state": "absent", "value": "dyadic",
    }  # fmt: skip
    sizes: dict[str, Any] = {} if lengths is None else {"T": sum(lengths), "lengths": lengths}
    return Problem(**{**plain, **sizes, **fields})


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

_INVERSES = (
    "inverses by doubling or Newton, over the chunk or over blocks, in the operands' format (SO1,"
    " SO8)"
)

_MEMORY: Final = (
    _LONG_MEMORY,
    replace(_LONG_MEMORY, name="long-memory-4096", about="long-memory over 64 chunks, T = 4096",
            exposes="decay or state rounded to 16 bits, and their bias (C2, H11, H12, S12)",
            problem=_LONG_MEMORY.problem.replace(T=4096), profile="acceptance"),
    Probe(name="kept-state",
          about="beta 0 and no decay over two chunks: S_T is S_0, with all its bits",
          exposes="state carried in fewer bits than declared: bf16, fp16, TF32, fp32 for fp64 (H11,"
                  " H12, S12)", problem=posed(T=65, key="random", beta="zero", state="random"),
          measures=("spacing",)),
    Probe(name="nine-bit-state",
          about="a state of 257 times powers of two, beta 0, no decay, the run cut at token 17 and"
                " resumed: S_T is S_0", exposes="checkpoint of the state in bf16 (H11, S12)",
          problem=posed(T=33, key="random", beta="zero", state="nine-bits"), measures=("spacing",),
          cut=17),
)  # fmt: skip
"""Of what is carried: a memory, kept for a long time or handed over, shows every lost bit. Over
4,096 tokens the error of S_T was 95 times that of a right kernel where the decay was in bf16, and
37 times where the state was. On random writes the state corrects itself: the errors of right and
wrong kernels grow alike."""

_WRITES: Final = (
    Probe(name="converged-residual",
          about="S^T k = 4098 from rows of 8192 and 4, v = 4096, one token: each row changes by 1,"
                " and that change is what counts",
          exposes="residual, or S^T k, rounded to 16 bits before v is subtracted: all of the update"
                  " is lost (GA10, H12)",
          problem=posed(T=1, key="pair", state="two-rows", value="converged"),
          measures=("update",)),
    Probe(name="overwrite",
          about="orthonormal one-hot keys, beta 1, no decay, T = 65: each token replaces a row, the"
                " last one that of token 48",
          exposes="old memory that stays, as after a one-token tail; decay differences of exactly 0"
                  " dropped (H10, GA15, O5)", problem=posed(T=65), measures=("spacing",)),
    Probe(name="whole-value",
          about="v with all bits of its format, written once by one-hot keys and read at once: o"
                " and S_T are copies",
          exposes="operands in fewer bits than declared: TF32 or bf16 beside fp32 (H12)",
          problem=posed(T=16, value="normal"), measures=("spacing",),
          dtypes=("fp64", "fp32", "fp16")),
    Probe(name="write-strength",
          about="beta of all bits, up to the last number below 1, one write a row: S_T is beta v"
                " exactly", exposes="beta rounded to bf16 on its way to the update (GA10, GA12)",
          problem=posed(T=16, beta="near-one"), measures=("spacing",),
          dtypes=("fp64", "fp32", "fp16")),
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
)  # fmt: skip
"""Of what is written: v - S^T k, times beta, into the row of k."""

_DECAYS: Final = (
    Probe(name="deep-decay",
          about="63 steps of about -0.5 after a write to one channel, 64 on the state of the"
                " others: exp(-32) is left, row by row",
          exposes="exponents clamped at -20, or any bound above -31 (GA17, GA18)",
          problem=posed(T=64, gate="deep", beta="sparse", state="random"), measures=("memory",)),
    Probe(name="pure-decay",
          about="beta 0, 17 steps of a trained gate on a state of all bits: S_T is exp(sum of g)"
                " S_0, row by row",
          exposes="cumulative gate or decay rounded to 16 bits, writes in spite of beta 0, decay"
                  " along V (B18, H2, H29, P8)",
          problem=posed(T=17, key="random", beta="zero", gate="log-sigmoid", state="random"),
          measures=("memory",)),
    Probe(name="hard-reset",
          about="one step of -inf, no other decay: what is not written afterwards is exactly 0,"
                " what is written is exact",
          exposes="inf - inf after the reset, a reset by a clamped exponent (GA22, X3)",
          problem=posed(T=33, gate="reset-alone", state="dyadic", seed=3), measures=("spacing",)),
    Probe(name="huge-step",
          about="one step of -1e4, no other decay: what is not written afterwards is less than"
                " every number",
          exposes="exponents clamped at -20, -80 or -88 that leave a trace of the state (GA17,"
                  " GA18, GA22)", problem=posed(T=33, gate="huge-alone", state="dyadic", seed=3),
          measures=("spacing",)),
    Probe(name="strong-then-weak",
          about="one step of -1000 at token 8, then about -0.05 a token, among random writes",
          exposes="factors exp(-G) formed from the chunk's start, sums of gates in 16 bits (GA4,"
                  " GA18, CS5, B18)",
          problem=posed(T=80, key="random", gate="strong-step", beta="uniform", state="random",
                        value="normal")),
    Probe(name="last-gate",
          about="gates of -0.5 to -1.5 at the last token, in the only row of a second chunk: S_T"
                " decays by them",
          exposes="last gate read past the end of a short chunk, or left out (H6, H7, H8)",
          problem=posed(T=65, key="random", gate="last", beta="zero", state="random"),
          measures=("memory",)),
)  # fmt: skip
"""Of decay: deep, sudden, at the very end, or alone."""

_KEYS: Final = (
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
"""Of the triangular system: coherent keys, where powers of it grow, and blocks that may be lost."""

_LENGTHS: Final = (
    Probe(name="single-tokens",
          about="five sequences of one token, each with a state whose row it overwrites",
          exposes="one-token tails that skip S^T k, states of other sequences (H10, S5, H25)",
          problem=posed(lengths=(1, 1, 1, 1, 1), state="dyadic"), measures=("spacing",)),
    Probe(name="empty-sequences",
          about="empty sequences first, in the middle and last: their S_T is their S_0, bit by bit",
          exposes="states of empty sequences zeroed, left unwritten, or those of a neighbour (V4,"
                  " V6, V7)", problem=posed(lengths=(0, 3, 0, 0, 17, 0), state="dyadic"),
          measures=("spacing",)),
    Probe(name="chunks-plus-one",
          about="129 = 2 * 64 + 1 tokens of one key and one value: the row past two full chunks"
                " finds nothing left to write",
          exposes="a tail of one row that skips the carried state (H10, O2, B17)",
          problem=posed(T=129, key="flat", value="repeated"), measures=("spacing",)),
)  # fmt: skip
"""Of lengths: one token, none, and one more than chunks hold."""

PROBES: Final[Mapping[str, Probe]] = {
    probe.name: probe for probe in (*_MEMORY, *_WRITES, *_DECAYS, *_KEYS, *_LENGTHS)
}
"""Every probe by name."""


def probes(dtype: str, profile: str) -> tuple[Probe, ...]:
    """The probes that a profile tests in one dtype.

    Raises:
        ValueError: no such profile.
    """
    check_profile(profile)
    rank = [*PROFILES].index
    tested = [
        probe
        for probe in PROBES.values()
        if rank(probe.profile) <= rank(profile) and dtype in probe.dtypes
    ]
    return tuple(probe.of(probe.problem.replace(dtype=dtype)) for probe in tested)
