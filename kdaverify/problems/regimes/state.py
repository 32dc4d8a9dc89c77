"""Initial states S_0 [N, HV, K, V], or None."""

from __future__ import annotations

import numpy as np

from kdaverify.problems.portable import Array
from kdaverify.problems.regimes.regime import Draw, Regime, table


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


def _asymmetric(d: Draw) -> Array | None:
    # A ramp over all entries, up to 4: any two differ, so no transposition, shift or swap of heads can hide.
    p = d.problem
    count = p.N * p.HV * p.K * p.V
    ramp = np.arange(1, count + 1, dtype=np.float64)
    return (ramp * (4.0 / count)).reshape(p.N, p.HV, p.K, p.V)


STATES = table(
    Regime("absent", "a missing state read as garbage or as another slot's (S3, S11, V6)", _absent),
    Regime("zero", "absent and zero states treated differently (S11, V6)", _zero),
    Regime("random", "carry into the first chunk, states of empty sequences (H2, S10, V4, V6, V7)", _random, weight=2),
    Regime("large", "state rounded or overflowing on its way through 16 bits (O6, S12, S14, H12)", _large),
    Regime("asymmetric", "transposed, shifted or swapped states (O1, S8, H16, SO5, H4)", _asymmetric, weight=2),
)
