"""Values v [B, T, HV, V]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdaverify.problems.portable import Array
from kdaverify.problems.regimes.regime import Draw, Regime, table

# 2^-4 to 2^4.
_OCTAVES = 9


def _normal(d: Draw) -> Array:
    return d.normal("v", d.problem.HV, d.problem.V)


def _scaled(exponent: int) -> Callable[[Draw], Array]:
    def draw(d: Draw) -> Array:
        return 2.0**exponent * _normal(d)

    return draw


def _tiny(d: Draw) -> Array:
    # fp16 has no room for 2^-20: 2^-6 keeps the values normal numbers.
    return _scaled(-6 if d.problem.dtype == "fp16" else -20)(d)


def _beyond_fp16(d: Draw) -> Array:
    # fp16 itself holds none of them: there they are large ones.
    return _scaled(6 if d.problem.dtype == "fp16" else 20)(d)


def _powers_of_two(d: Draw) -> Array:
    p = d.problem
    sign = 1.0 - 2.0 * d.integers("sign", 2, p.HV, p.V)
    return np.ldexp(sign, d.integers("octave", _OCTAVES, p.HV, p.V) - _OCTAVES // 2)


def _zero(d: Draw) -> Array:
    p = d.problem
    return np.zeros((p.B, p.T, p.HV, p.V))


def _dyadic(d: Draw) -> Array:
    # 1 to 32 and their negatives: the difference of any two has 6 bits.
    p = d.problem
    return np.ldexp(
        1.0 - 2.0 * d.integers("sign", 2, p.HV, p.V), d.integers("octave", 6, p.HV, p.V)
    )


def _repeated(d: Draw) -> Array:
    p = d.problem
    return np.repeat(_dyadic(d)[:, :1], p.T, axis=1) if p.T else _dyadic(d)


def column_factors(V: int) -> Array:
    """[V] powers of two of both signs, 1 to 2^-3."""
    column = np.arange(V)
    return np.ldexp((-1.0) ** column, -(column % 4))


def _converged(d: Draw) -> Array:
    p = d.problem
    return np.array(np.broadcast_to(4096.0 * column_factors(p.V), (p.B, p.T, p.HV, p.V)))


VALUES = table(
    Regime("normal", "general value algebra: heads, widths and tails of V (O4, B22, SO5, A4)",
           _normal, weight=4),
    Regime("powers-of-two", "exact products: any rounding or lost term shows (O2, O5, S23)",
           _powers_of_two, weight=2),
    Regime("large",
           "overflow of 16-bit intermediates, absolute tolerances that are too tight (O6, A9)",
           _scaled(6)),
    Regime("beyond-fp16", "tiles that pass through fp16 on their way in or out (O6)", _beyond_fp16,
           weight=0),
    Regime("tiny",
           "absolute epsilons and tolerances that hide everything, flushed subnormals (P1, X6)",
           _tiny),
    Regime("zero",
           "outputs that must be exactly the decayed state: stale tiles, unwritten rows (H24, O10,"
           " O11)", _zero),
    Regime("dyadic", "values whose sums and differences every format holds (O5, H10, S23)", _dyadic,
           weight=0),
    Regime("repeated",
           "the same value at every token: nothing is left to write after the first (SO1, SO6)",
           _repeated, weight=0),
    Regime("converged", "values that the state of two rows recalls up to its last bits (GA10, H12)",
           _converged, weight=0),
)  # fmt: skip
