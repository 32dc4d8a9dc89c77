"""Write strengths beta [B, T, HV] in [0, 2]."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Array
from kdaverify.problems.regimes.regime import Draw, Regime, table

# Chosen: below half a spacing of bf16 at 1 (2^-9), so that such a token hardly writes.
_SMALL = 2.0**-10
_TINIEST = 24
"""Exponent of the smallest number of fp16."""
# The last token of a chunk of 64.
WRITTEN_AT = 63


def _constant(value: float) -> Callable[[Draw], Array]:
    def draw(d: Draw) -> Array:
        return np.full((d.problem.B, d.problem.T, d.problem.HV), value)

    return draw


def _uniform(d: Draw) -> Array:
    return d.uniform("beta", d.problem.HV)


def _near_one(d: Draw) -> Array:
    # The last number below 1 of the dtype, and two with half as many bits: each is representable.
    last = torch.finfo(TORCH[d.problem.dtype]).eps / 2.0
    bits = 1 - math.frexp(last)[1]
    steps = np.array([last, 2.0 ** -(bits // 2), 2.0 ** (1 - bits // 2)])
    return 1.0 - steps[d.integers("step", len(steps), d.problem.HV)]


def _mixed(d: Draw) -> Array:
    u = _uniform(d)
    options = np.stack([np.zeros_like(u), _SMALL * u, u, np.ones_like(u)])
    kind = d.integers("kind", len(options), d.problem.HV)
    return np.take_along_axis(options, kind[None], axis=0)[0]


def _tiny(d: Draw) -> Array:
    # Every octave down to the smallest number of fp16, beside ordinary ones.
    octaves = d.integers("octave", _TINIEST + 1, d.problem.HV)
    return np.ldexp(1.0, -octaves)


def _sparse(d: Draw) -> Array:
    beta = np.zeros((d.problem.B, d.problem.T, d.problem.HV))
    for b, start, length in d.problem.spans:
        beta[b, start : start + min(length, 1)] = 1.0
    return beta


def _one_write(d: Draw) -> Array:
    # At the last token of a chunk, where the decay to the chunk's end is exactly 1 and rounds to
    # nothing else.
    beta = np.zeros((d.problem.B, d.problem.T, d.problem.HV))
    for b, start, length in d.problem.spans:
        token = start + min(WRITTEN_AT, max(length - 1, 0))
        beta[b, token : token + min(length, 1)] = 1.0
    return beta


BETAS = table(
    Regime("one", "overwriting updates: the full triangular system (SO1, SO6, B2, B3)",
           _constant(1.0)),
    Regime("zero",
           "pure decay: writes that should not happen, decay on the wrong axis (H2, P8, S10)",
           _constant(0.0)),
    Regime("near-one", "beta rounded on its way to the update (GA10, GA12)", _near_one),
    Regime("uniform", "beta misread: per head, per sequence, logit for value (GA13, H25, H15)",
           _uniform, weight=4),
    Regime("mixed", "tokens that write beside tokens that do not; masked rows (H25, P8, B33)",
           _mixed, weight=2),
    Regime("sparse",
           "one write, then only decay: bias of decay or state rounding grows with T (H11, H12,"
           " S12, C2)", _sparse),
    Regime("faint",
           "every write below half a spacing of a 16-bit state, which then stands still (H12, S12)",
           _constant(2.0**-8), weight=0),
    Regime("small",
           "triangular systems taken for the identity, or for one term of their series (SO1)",
           _constant(2.0**-10), weight=0),
    Regime("tiny",
           "writes of every octave down to 2^-24: divisions by beta, thresholds (B2, B3, GA10)",
           _tiny, weight=0),
    Regime("two", "negative eigenvalues: reflections, no damping of rounding (SO1, H15)",
           _constant(2.0)),
    Regime("one-write",
           "one write that no operand's rounding blurs, then only decay (H11, H12, S12, C2)",
           _one_write, weight=0),
)  # fmt: skip
