"""How an error grows with length beside conforming kernels': level, slope and bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.budgets.constants import IDEAL_ROUNDING
from kdaverify.budgets.drift import Curve
from kdaverify.budgets.formats import Format

LEVEL: Final = 2.0
"""At the largest length the error of a kernel may be this many times that of the worst conforming
one. Chosen: on a memory of 4,096 tokens a decay in bf16 had 95 times the error of a right kernel, a
state in bf16 37 times. benchmarks.drift_power measures levels again."""

# Relative to conforming kernels the error of a state in bf16 grew as T^0.72 over 4,096 tokens, that
# of a decay in bf16 as T^1.03, and that of right kernels as T^0.00; ten of ten groups of either
# fault were rejected, none of 80 conforming groups (benchmarks.drift_power).
SLOPE: Final = 0.05
"""Its error may grow with this power of the length beside that of the conforming kernel whose error
grows fastest, and beside the worst conforming error where it lies above that: an error that only
reaches the band of conforming kernels does not drift.

A right port of chunks of 16 with a state in bf16, but operands in fp32, had 0.68 times the worst
conforming error at 64 tokens and 0.99 times at 4,096. It was rejected for growing as T^0.08."""

BIAS: Final = 0.5
"""All elements may share this fraction of the error; more where conforming kernels do. On a memory
of 256 to 8,192 tokens right kernels share at most 0.21, one whose decay is in bf16 all of it."""

OCTAVES: Final = 6.0
"""Of lengths, below which no slope is judged. Chosen: 64 to 4,096 tokens, so that a slope of the
limit is a factor of 1.23 in the error; of random writes the errors of good and bad kernels grow
alike, as T^0.04 to T^0.08, over so many."""

# Of the lower limit of a slope.
CONFIDENCE: Final = 0.99
# The limit is the 1 % quantile of the resamples, here the 20th smallest: the share of any number of
# further resamples below it is 1 % with a standard deviation of 0.22 %.
RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Growth:
    """One output of one kernel and of conforming ones.

    Args:
        output: o or final_state.
        lengths: tokens, or single steps of a decoded run.
        kernel: its error curve.
        conforming: those of the conforming kernels of its contract, on the same inputs.
        stored: format the output is returned in.
    """

    output: str
    lengths: tuple[int, ...]
    kernel: Curve
    conforming: tuple[Curve, ...]
    stored: Format

    @property
    def octaves(self) -> float:
        return float(torch.tensor(self.lengths[-1] / self.lengths[0]).log2())

    @property
    def error(self) -> Tensor:
        """[lengths] of the kernel, geometric mean of the samples."""
        return _centre(self._floored(self.kernel))

    @property
    def band(self) -> tuple[Tensor, Tensor]:
        """[lengths] least and largest error of conforming kernels, geometric means of samples."""
        floored = torch.stack([self._floored(curve) for curve in self.conforming])
        return _centre(floored.amin(0)), _centre(floored.amax(0))

    @property
    def used(self) -> Tensor:
        """[lengths] fraction of the tolerance used: error / (2 worst conforming error)."""
        return self.error / (LEVEL * self.band[1])

    @property
    def slope(self) -> float:
        """The power of length that the error leaves the band of conforming kernels with."""
        return float(self._slopes.mean())

    @property
    def slope_limit(self) -> float:
        """Lower limit of the slope at 99 % confidence."""
        return self._lower(lambda chosen: self._slopes[chosen].mean(-1))

    @property
    def own_slope(self) -> float:
        """The power of the length that the error itself grows with."""
        return float(_fitted(self._floored(self.kernel), self.lengths).mean())

    @property
    def conforming_slopes(self) -> tuple[float, float]:
        """The least and the largest slope of conforming kernels."""
        slopes = [
            float(_fitted(self._floored(curve), self.lengths).mean()) for curve in self.conforming
        ]
        return min(slopes), max(slopes)

    @property
    def bias(self) -> float:
        """|mean| / rms of the error at the largest length: 1 where one factor is all of it."""
        return float(_shared(self.kernel)[0].abs())

    @property
    def bias_limit(self) -> float:
        """Lower 99 % limit of |mean| / rms, or of |mean| / the worst conforming error if less."""
        mean, rms = self.kernel.mean[:, -1], self.kernel.rms[:, -1]
        worst = torch.stack([self._floored(curve)[:, -1] for curve in self.conforming]).amax(0)
        size = torch.maximum(rms, worst).square()
        return self._lower(
            lambda chosen: mean[chosen].mean(-1).abs() / size[chosen].mean(-1).sqrt()
        )

    @property
    def bias_allowed(self) -> float:
        return max(BIAS, *(float(_shared(curve)[0].abs()) for curve in self.conforming))

    @property
    def ratios(self) -> dict[str, float]:
        """Of level, slope and bias: what was found / its tolerance; above 1 fails.

        A slope is judged over 6 octaves, of a kernel whose error is that of some conforming one at
        the largest length.
        """
        # Where all of the error of some conforming kernel is shared, no share of it is too large.
        judged = self.octaves >= OCTAVES and bool(self.error[-1] >= self.band[0][-1])
        return {
            "level": float(self.used[-1]),
            "slope": max(0.0, self.slope_limit / SLOPE) if judged else 0.0,
            "bias": self.bias_limit / self.bias_allowed if self.bias_allowed < 1 else 0.0,
        }

    def figures(self) -> dict[str, Any]:
        """Everything a reader of JSON may want, samples included."""
        low, high = self.band
        return {
            "lengths": list(self.lengths),
            "error": self.error.tolist(),
            "legal": {"least": low.tolist(), "most": high.tolist()},
            "used": self.used.tolist(),
            "slope": {
                "own": self.own_slope,
                "legal": list(self.conforming_slopes),
                "beside_legal": self.slope,
                "limit": self.slope_limit,
            },
            "bias": {"value": self.bias, "limit": self.bias_limit, "allowed": self.bias_allowed},
            "ratios": self.ratios,
            "samples": {
                curve.name: {"rms": curve.rms.tolist(), "mean": curve.mean.tolist()}
                for curve in (self.kernel, *self.conforming)
            },
        }

    @property
    def _slopes(self) -> Tensor:
        """[samples] of the error beside the steepest conforming one, or of what lies above the
        band, whichever grows less.
        """
        own = self._floored(self.kernel)
        conforming = torch.stack([self._floored(curve) for curve in self.conforming])
        worst = conforming.amax(0)
        steepest = _fitted(conforming, self.lengths)
        beside = _fitted(own, self.lengths) - steepest[int(steepest.mean(1).argmax())]
        above = _fitted(torch.maximum(own, worst) / worst, self.lengths)
        return beside if beside.mean() < above.mean() else above

    def _floored(self, curve: Curve) -> Tensor:
        """[samples, lengths] no error taken for smaller than what rounding the result costs."""
        return curve.rms.clamp(min=IDEAL_ROUNDING * self.stored.unit)

    def _lower(self, statistic: Callable[[Tensor], Tensor]) -> float:
        """The 1 % quantile of `statistic` over resamples, the same ones at every call."""
        samples = len(self.kernel.rms)
        rng = torch.Generator().manual_seed(samples)
        return float(
            statistic(torch.randint(samples, (RESAMPLES, samples), generator=rng)).quantile(
                1 - CONFIDENCE
            )
        )


def pooled(parts: Sequence[Growth]) -> Growth:
    """The same output of the same kernels, measured on the samples of all parts."""

    def together(curves: Sequence[Curve]) -> Curve:
        return Curve(
            curves[0].name,
            torch.cat([curve.rms for curve in curves]),
            torch.cat([curve.mean for curve in curves]),
        )

    conforming = tuple(
        together(same) for same in zip(*(part.conforming for part in parts), strict=True)
    )
    return replace(
        parts[0], kernel=together([part.kernel for part in parts]), conforming=conforming
    )


def _centre(errors: Tensor) -> Tensor:
    return errors.log().mean(0).exp()


def _shared(curve: Curve) -> Tensor:
    """[1] mean / rms at the largest length, over all samples."""
    return (
        (curve.mean[:, -1].mean() / curve.rms[:, -1].square().mean().sqrt())
        .nan_to_num(nan=0.0)
        .reshape(1)
    )


def _fitted(errors: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """[samples] slope of log error against log length, by least squares."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return (errors.log() @ x) / x.square().sum()
