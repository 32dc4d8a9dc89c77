"""Log decays g [B, T, HV, K]: <= 0, natural logarithm, -inf is a hard reset of that channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdaverify.problems.portable import Array, log
from kdaverify.problems.regimes.regime import Draw, Regime, table

# exp(-1e4) is 0 in every format (in float64 below -745), and -1e4 itself is finite in fp16, whose
# largest number is 65,504.
HUGE = -1e4
# A state keeps 1 / e of itself over a thousand tokens, which is many chunks: an error in what is
# carried between chunks does not decay before it is seen.
SLOW = -1e-3
# Decays of exp(-8e-5), and of half as much more, round to 1 in fp16 and bf16: half a spacing below
# 1 is 2^-12 = 2.4e-4 in fp16. In fp32 they are a thousand spacings from 1.
FAINT = 8e-5
# Decays 16 spacings of fp32 below 1: a kernel that took gates this close to 0 for none lost 6e-5 of
# the state in 64 tokens, and was accepted.
VANISHING = -(2.0**-20)
# Chosen: four resets of each channel in a chunk of 64, and most tokens without.
_RESET_ONE_IN = 16
# Inside the first block of 16 rows: factors anchored at its first row are anchored before the step.
STRONG_STEP = 8
# Up to 96 nats a token, where fp32's exp holds 88.
_OCTAVES = (-20, 6)


def _constant(value: float) -> Callable[[Draw], Array]:
    def draw(d: Draw) -> Array:
        p = d.problem
        return np.full((p.B, p.T, p.HV, p.K), value)

    return draw


def _log_sigmoid(d: Draw) -> Array:
    # (1 + (x/2) / sqrt(1 + (x/2)^2)) / 2 follows sigmoid(x) closely over the sampled range; it
    # needs no exponential.
    half = 0.5 * d.normal("logit", d.problem.HV, d.problem.K)
    return log(0.5 * (1.0 + half / np.sqrt(1.0 + half * half)))


def _half_zero(d: Draw) -> Array:
    g = _log_sigmoid(d)
    g[:, ::2] = 0.0
    return g


def _log_uniform(d: Draw) -> Array:
    # 2^e (1 + f), e an integer and f uniform: a piecewise linear 2^U(-20, 6.6) that is exact to
    # form.
    low, high = _OCTAVES
    p = d.problem
    octave = low + d.integers("octave", high - low + 1, p.HV, p.K)
    fraction = d.uniform("fraction", p.HV, p.K)
    top = np.where(octave == high, 0.5, 1.0)
    return -np.ldexp(1.0 + top * fraction, octave)


def _spread(d: Draw) -> Array:
    # Channel rates from 0 to -3 a token: over 64 tokens the outer channels part by 192 nats (fp32
    # exp holds 88).
    K = d.problem.K
    ramp = np.arange(K) / max(K - 1, 1)
    return -3.0 * ramp * (0.75 + 0.5 * d.uniform("jitter", d.problem.HV, 1))


def _strong_then_weak(d: Draw) -> Array:
    g = np.full((d.problem.B, d.problem.T, d.problem.HV, d.problem.K), SLOW)
    strong = -10.0 * (1.0 + d.uniform("strength", d.problem.HV, d.problem.K))
    for b, start, length in d.problem.spans:
        first_half = slice(start, start + (length + 1) // 2)
        g[b, first_half] = strong[b, first_half]
    return g


def _one_token(value: float, others: float = SLOW) -> Callable[[Draw], Array]:
    def draw(d: Draw) -> Array:
        g = _constant(others)(d)
        for n, (b, start, length) in enumerate(d.problem.spans):
            if length:
                g[b, start + int(d.stream("position", n).integers(length, 1)[0])] = value
        return g

    return draw


def _jittered(nats: float) -> Callable[[Draw], Array]:
    """Between 0.5 and 1.5 `nats` a token: equal gates would repeat one rounding error."""

    def draw(d: Draw) -> Array:
        return -nats * (0.5 + d.uniform("jitter", d.problem.HV, d.problem.K))

    return draw


def _last(d: Draw) -> Array:
    g = _constant(0.0)(d)
    gates = _jittered(1.0)(d)
    for b, start, length in d.problem.spans:
        last = slice(start + max(length - 1, 0), start + length)
        g[b, last] = gates[b, last]
    return g


def _strong_step(d: Draw) -> Array:
    g = _jittered(0.05)(d)
    for b, start, length in d.problem.spans:
        step = start + min(STRONG_STEP, max(length - 1, 0))
        g[b, step : step + min(length, 1)] = -1000.0
    return g


def _hard_reset(d: Draw) -> Array:
    reset = d.integers("reset", _RESET_ONE_IN, d.problem.HV, d.problem.K) == 0
    return np.where(reset, -np.inf, _log_sigmoid(d))


# Beyond the largest number of fp16, 65,504, and finite in fp32.
_DEEP = (-1e5, -1e6)


def _deep_resets(d: Draw) -> Array:
    """One in sixteen gates is -1e5 or -1e6, between ordinary ones."""
    depth = d.integers("depth", _RESET_ONE_IN * len(_DEEP), d.problem.HV, d.problem.K)
    g = _log_sigmoid(d)
    for index, value in enumerate(_DEEP):
        g = np.where(depth == index, value, g)
    return g


CHANNELWISE = ("spread",)
"""Regimes that are about channels apart from each other: where channels share a gate there is no
such problem."""

EXTREME = ("bound-100", "one-token-hard-reset", "spread", "mixed")
"""Regimes that a model never shows and a kernel must survive: deep decay, resets, and channels far
apart."""

# Every kind beside every other, in one tile; None: an ordinary gate.
_MIXTURE = (0.0, SLOW, None, -5.0, -20.0, -100.0, HUGE, -np.inf)


def _mixed(d: Draw) -> Array:
    p = d.problem
    kind = d.stream("kind").integers(len(_MIXTURE), p.HV, p.K)
    g = _log_sigmoid(d)
    for index, value in enumerate(_MIXTURE):
        if value is not None:
            g = np.where(kind == index, value, g)
    return g


GATES = table(
    Regime("zero",
           "decay differences of exactly 0 dropped or mis-masked (GA15, B30); the plain delta rule",
           _constant(0.0)),
    Regime("slow",
           "carry faults that decay would hide: lost carry, 16-bit hand-over (H2, H11, H12, S12,"
           " C2)", _constant(SLOW)),
    Regime("memory",
           "decays that few bits distinguish from 1: every error adds up (H11, H12, S12, C2)",
           _jittered(FAINT), weight=0),
    Regime("vanishing", "gates next to 0 taken for none (GA15)", _constant(VANISHING), weight=0),
    Regime("mild", "wrong last-row gate whose cost is small per token (H6, H7, H8)",
           _constant(-0.05)),
    Regime("log-sigmoid",
           "general gate algebra: log for linear, base 2 for e, decay twice (GA2, GA3, H1)",
           _log_sigmoid, weight=2),
    Regime("half-zero",
           "guards on the sign of one step's decay, mixed with real decay (GA15, GA16)",
           _half_zero),
    Regime("bound-5",
           "gate saturated at its lower bound: single anchors, cancelling diagonals (GA5, B4, B8)",
           _constant(-5.0)),
    Regime("bound-20",
           "exp(-G) formed from the chunk start, clamped exponents (GA4, GA18, CS2, A2)",
           _constant(-20.0)),
    Regime("bound-100",
           "overflow inside one 16-row block, masks by multiplication (GA18, GA20, A2, A12)",
           _constant(-100.0)),
    Regime("huge", "exponents beyond every format: 0 * inf and inf - inf (GA20, GA21, B16)",
           _constant(HUGE)),
    Regime("log-uniform",
           "decay of every magnitude: log(alpha + eps), 16-bit cumulative gates (GA2, H29, B18)",
           _log_uniform),
    Regime("spread",
           "one offset for all channels of a token: channels over 88 nats apart vanish (GA17, GA5)",
           _spread),
    Regime("strong-then-weak",
           "an anchor taken where decay is strong, used where it is weak (GA18, CS5, B8, B11)",
           _strong_then_weak),
    Regime("one-token-reset",
           "one step of -1e4: differences after the reset lose all digits (GA18, A9, H8)",
           _one_token(HUGE)),
    Regime("one-token-hard-reset", "one step of -inf: inf - inf after the reset (GA22, X3)",
           _one_token(-np.inf)),
    Regime("hard-reset", "-inf at scattered tokens and channels (GA22, X3)", _hard_reset),
    Regime("deep-resets",
           "-1e5 and -1e6 among ordinary gates: fp32 sums are spaced by 0.06 there (GA18, A9, H8)",
           _deep_resets),
    Regime("mixed",
           "strong channels beside weak ones: no fault can hide (GA15, GA17, GA18, GA22, H2)",
           _mixed, weight=4),
    Regime("deep", "32 nats over a chunk, in even steps: exponents clamped at -20 (GA17, GA18)",
           _jittered(0.5), weight=0),
    Regime("last", "the gate of the last token alone, which a short chunk may lose (H6, H7, H8)",
           _last, weight=0),
    Regime("strong-step",
           "one step of -1000, then weak ones: factors anchored before it (GA4, GA18, CS5)",
           _strong_step, weight=0),
    Regime("huge-alone",
           "one step of -1e4 and no other decay: traces of what it erased (GA17, GA18)",
           _one_token(HUGE, 0.0), weight=0),
    Regime("reset-alone", "one step of -inf and no other decay: exact before and after (GA22, X3)",
           _one_token(-np.inf, 0.0), weight=0),
)  # fmt: skip
