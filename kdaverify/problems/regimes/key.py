"""Queries and keys [B, T, H, K], generated together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from kdaverify.problems.portable import Array, unit
from kdaverify.problems.regimes.regime import Draw, Regime, table

QueriesKeys: TypeAlias = tuple[Array, Array]

# Chosen: some four rows of zeros in a block of 16, beside ordinary ones.
_ZERO_ONE_IN = 4


def _norm(d: Draw) -> float:
    # beta |k|^2 <= 2 must survive rounding to 16 bits (math.md 2, contraction); only beta = 2
    # leaves no room for it.
    return 1.0 - 2.0**-7 if d.problem.beta == "two" else 1.0


def _queries(d: Draw) -> Array:
    return unit(d.normal("q", d.problem.H, d.problem.K))


def _direction(d: Draw) -> Array:
    """One unit vector per batch entry and head, [B, 1, H, K]."""
    p = d.problem
    return unit(d.stream("direction").normal(p.B, 1, p.H, p.K))


def _random(d: Draw) -> QueriesKeys:
    return _queries(d), _norm(d) * unit(d.normal("k", d.problem.H, d.problem.K))


def _coherent(rho: float) -> Callable[[Draw], QueriesKeys]:
    """k_i . k_j = rho on average, and the same for q_i . k_j."""

    def draw(d: Draw) -> QueriesKeys:
        common = math.sqrt(rho) * _direction(d)
        q, k = (
            common + math.sqrt(1.0 - rho) * unit(d.normal(name, d.problem.H, d.problem.K))
            for name in ("q", "k")
        )
        return _unit_or(common, q), _norm(d) * _unit_or(common, k)

    return draw


def _unit_or(common: Array, x: Array) -> Array:
    """Unit vectors along x, or along its channels' common part where these cancel exactly."""
    return unit(np.where((x == 0).all(-1, keepdims=True), common, x))


def _identical(d: Draw) -> QueriesKeys:
    return _queries(d), _norm(d) * np.repeat(_direction(d), d.problem.T, axis=1)


def _alternating(d: Draw) -> QueriesKeys:
    sign = 1.0 - 2.0 * (np.arange(d.problem.T) % 2)
    return _queries(d), _norm(d) * _direction(d) * sign[None, :, None, None]


def _one_hot(d: Draw) -> QueriesKeys:
    # Token t writes row t mod K and reads row t // 2 mod K: always one that was written before, up
    # to K / 2 tokens ago.
    p = d.problem
    token = np.arange(p.T)
    q, k = (
        np.broadcast_to(np.eye(p.K)[row % p.K][None, :, None, :], (p.B, p.T, p.H, p.K))
        for row in (token // 2, token)
    )
    return q, k


def _flat(d: Draw) -> QueriesKeys:
    # Exact where K is a power of 4: every channel is read and written alike.
    p = d.problem
    x = unit(np.ones((p.B, p.T, p.H, p.K)))
    return x, _norm(d) * x


def _pair(d: Draw) -> QueriesKeys:
    # k reads the sum of two rows, q the second of them alone.
    p = d.problem
    q, k = np.zeros((2, p.B, p.T, p.H, p.K))
    q[..., 1 % p.K] = 1.0
    k[..., :2] = 0.5
    return q, k


def _zero_rows(d: Draw) -> QueriesKeys:
    q, k = _random(d)
    keep = [d.integers(f"zero {name}", _ZERO_ONE_IN, d.problem.H, 1) > 0 for name in ("q", "k")]
    return q * keep[0], k * keep[1]


def _tiny(d: Draw) -> QueriesKeys:
    # Norm 1.2e-4; in fp16 2^-5, so that the entries of wide keys stay normal numbers.
    size = 2.0**-5 if d.problem.dtype == "fp16" else 2.0**-13
    q, k = _random(d)
    return size * q, size * k


# Products up to 256: a kernel that clamped those of keys at 2 was accepted. With betas of 2^-10
# they write a quarter of a value.
_LONG = 16.0
_WEAK = "small"


def _long(d: Draw) -> QueriesKeys:
    q, k = _random(d)
    return q, (_LONG if d.problem.beta == _WEAK else 1.0) * k


KEYS = table(
    Regime("random", "general key algebra; hides every bad triangular inverse (GA2, H1, SO6, P3)",
           _random, weight=2),
    Regime("one-hot",
           "which key row is written and read: axis and head offsets, exact arithmetic (O1, O4, S8,"
           " H16)", _one_hot),
    Regime("identical",
           "the worst triangular system of the domain: truncated or doubling inverses (SO1, SO6)",
           _identical),
    Regime("alternating",
           "the inverse's off-diagonal terms with both signs, cancelling sums (SO1, SO5)",
           _alternating),
    Regime("coherent-0.3", "doubling inverses that lose digits on mild coherence (SO1)",
           _coherent(0.3)),
    Regime("coherent-0.6", "16-row doubling inverses (SO1)", _coherent(0.6)),
    Regime("coherent-0.9", "doubling inverses in any low precision (SO1, SO8)", _coherent(0.9),
           weight=2),
    Regime("coherent-0.99", "nearly singular updates: residuals v - S k that cancel (SO1, GA10)",
           _coherent(0.99)),
    Regime("zero-rows",
           "norms and gradients at the zero vector, padding taken for data (B33, P1, P8)",
           _zero_rows),
    Regime("tiny", "epsilons too large beside small norms (P1, P2, B34)", _tiny),
    Regime("long", "beside small betas products of keys clamped, or taken for cosines (GA10, SO1)",
           _long, weight=0),
    Regime("coherent-0.5", "doubling inverses in 16 bits (SO1, SO8)", _coherent(0.5), weight=0),
    Regime("flat", "identical keys of exact norm: integers in the triangular system (SO1, SO6, A3)",
           _flat, weight=0),
    Regime("pair", "two rows of a state read at once, a large and a small one (GA10, H12)", _pair,
           weight=0),
)  # fmt: skip

COHERENCE = (
    "one-hot", "random", "coherent-0.3", "coherent-0.5", "coherent-0.6", "coherent-0.9",
    "coherent-0.99", "identical", "alternating",
)  # fmt: skip
"""Regimes from orthogonal to parallel keys; the others test other properties of keys."""
