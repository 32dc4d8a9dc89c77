"""Initial states S_0 [N, HV, K, V], or None."""

from __future__ import annotations

import numpy as np

from kdaverify.problems.portable import Array
from kdaverify.problems.regimes.regime import Draw, Regime, table
from kdaverify.problems.regimes.value import column_factors


def _absent(_: Draw) -> Array | None:
    return None


def _zero(d: Draw) -> Array | None:
    p = d.problem
    return np.zeros((p.N, p.HV, p.K, p.V))


def _normal(d: Draw) -> Array:
    p = d.problem
    return d.stream("state").normal(p.N, p.HV, p.K, p.V)


def _random(d: Draw) -> Array | None:
    return _normal(d)


def _large(d: Draw) -> Array | None:
    return 2.0**8 * _normal(d)


def _beyond_fp16(d: Draw) -> Array | None:
    # States are fp32 beside inputs of fp16, too: up to 65,504 reaches no further than a sigma here.
    return 2.0**16 * _normal(d)


def _asymmetric(d: Draw) -> Array | None:
    # A ramp over all entries, up to 4: any two differ, so no transposition, shift or swap of heads
    # can hide.
    p = d.problem
    count = p.N * p.HV * p.K * p.V
    ramp = np.arange(1, count + 1, dtype=np.float64)
    return (ramp * (4.0 / count)).reshape(p.N, p.HV, p.K, p.V)


def _nine_bits(d: Draw) -> Array | None:
    # 257 times powers of two: bf16 keeps 256 of it.
    p = d.problem
    column = np.arange(p.V)
    return _everywhere(d, np.ldexp(257.0 * (-1.0) ** column, -(column % 8)))


def _equal(d: Draw) -> Array | None:
    p = d.problem
    one = d.stream("state").normal(p.HV, p.K, p.V)
    return np.array(np.broadcast_to(one, (p.N, p.HV, p.K, p.V)))


def _every_other(d: Draw) -> Array | None:
    p = d.problem
    odd = np.arange(p.N) % 2 == 1
    return np.where(odd[:, None, None, None], _normal(d), 0.0)


def _dyadic(d: Draw) -> Array | None:
    p = d.problem
    shape = (p.N, p.HV, p.K, p.V)
    return np.ldexp(
        1.0 - 2.0 * d.stream("sign").integers(2, *shape), d.stream("octave").integers(6, *shape)
    )


def _two_rows(d: Draw) -> Array | None:
    # Rows of 8192 and 4 by turns, times the columns' factors.
    p = d.problem
    rows = np.where(np.arange(p.K) % 2 == 0, 8192.0, 4.0)[:, None]
    return _everywhere(d, rows * column_factors(p.V))


def _everywhere(d: Draw, matrix: Array) -> Array:
    p = d.problem
    return np.array(np.broadcast_to(matrix, (p.N, p.HV, p.K, p.V)))


STATES = table(
    Regime("absent", "a missing state read as garbage or as another slot's (S3, S11, V6)", _absent),
    Regime("zero", "absent and zero states treated differently (S11, V6)", _zero),
    Regime("random", "carry into the first chunk, states of empty sequences (H2, S10, V4, V6, V7)",
           _random, weight=2),
    Regime("large", "state rounded or overflowing on its way through 16 bits (O6, S12, S14, H12)",
           _large),
    Regime("beyond-fp16", "states of fp32 that pass through fp16, or are clamped to it (O6, S12)",
           _beyond_fp16, weight=0),
    Regime("asymmetric", "transposed, shifted or swapped states (O1, S8, H16, SO5, H4)",
           _asymmetric, weight=2),
    Regime("nine-bits", "states that need one bit more than bf16 has (H11, H12, S12)", _nine_bits,
           weight=0),
    Regime("equal", "one state for all sequences, as behind a common prefix (V1, S3)", _equal,
           weight=0),
    Regime("every-other", "whether there is a state, read off the first sequence or the last (V1)",
           _every_other, weight=0),
    Regime("dyadic", "states that leave no rounding when they are replaced (V4, V6, V7, H10)",
           _dyadic, weight=0),
    Regime("two-rows", "a large row beside a small one (GA10, H12)", _two_rows, weight=0),
)  # fmt: skip
