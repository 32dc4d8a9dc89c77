"""How far rounded arithmetic can be off, by element: proven, and for random roundings.

The same formulas give the radius of a float64 oracle and the bound of a kernel: only the precision
differs.
Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapters 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

FLUSHED: Final = 2.0**-100
FUNCTION_UNITS: Final = 4.0
"""Relative error of exp, 1/x, 1/sqrt in unit roundoffs: 2 ulp, what units of hardware and libraries
in fp32 reach."""


@dataclass(frozen=True)
class Precision:
    """A binary floating-point format: unit roundoff, smallest normal and largest number."""

    unit: float
    smallest: float
    largest: float = math.inf

    @property
    def vanishing(self) -> float:
        """What a result may underflow by: units flush fp32's subnormals, keep fp16's."""
        return self.smallest if self.smallest < FLUSHED else self.unit * self.smallest

    def gamma(self, roundings: float) -> float:
        """n u / (1 - n u), a bound of n successive roundings; inf where all digits may go."""
        n = roundings * self.unit
        return n / (1 - n) if n < 1 else math.inf


FLOAT64: Final = Precision(2.0**-53, 2.0**-1022)


@dataclass(frozen=True)
class RoundingError:
    """The error of a computed tensor.

    Args:
        bound: of every element, whatever the roundings do.
        variance: of every element, were each rounding uniform and independent of the others.
        lean: what units of functions are off by, which may have the same sign everywhere; part of
            the bound.
        overflows: whether a tensor that is rounded on the way may leave the range of its format.
    """

    bound: Tensor
    variance: Tensor
    lean: Tensor
    overflows: bool = False

    @classmethod
    def none(cls, like: Tensor) -> RoundingError:
        """Of a tensor that is given."""
        zero = torch.zeros_like(like)
        return cls(zero, zero, zero)

    @classmethod
    def rounding(cls, value: Tensor, roundings: float, precision: Precision) -> RoundingError:
        """Of `roundings` roundings of a value, none of them where it is 0 whatever is rounded."""
        moduli = value.abs()
        lost = roundings * precision.vanishing * (moduli > 0)
        return cls(
            precision.gamma(roundings) * moduli + lost,
            roundings * (precision.unit * moduli).square() / 3,
            lost,
        )

    @classmethod
    def joined(
        cls, errors: Sequence[RoundingError], join: Callable[[list[Tensor]], Tensor]
    ) -> RoundingError:
        """Of results that are put together."""
        return cls(
            join([error.bound for error in errors]),
            join([error.variance for error in errors]),
            join([error.lean for error in errors]),
            any(error.overflows for error in errors),
        )

    @classmethod
    def leaning(cls, bound: Tensor) -> RoundingError:
        """Of units of functions."""
        return cls(bound, torch.zeros_like(bound), bound)

    @classmethod
    def of_partials(cls, terms: Tensor, precision: Precision) -> RoundingError:
        """Of a sum over axis 0 by parts of any size, each rounded once.

        Math: the moduli of the parts add up to at most those of the terms; their squares, on
        average over random terms, to at most sum t^2 + (sum t)^2.
        """
        moduli, n = terms.abs().sum(0), len(terms)
        lost = n * precision.vanishing * (moduli > 0)
        squares = terms.square().sum(0) + terms.sum(0).square()
        found = cls(precision.unit * moduli + lost, precision.unit**2 / 3 * squares, lost)
        return replace(found, overflows=bool((moduli > precision.largest).any()))

    @classmethod
    def of_running_sum(
        cls, parts: Tensor, moduli: Tensor, count: int, precision: Precision
    ) -> RoundingError:
        """Of a sum over axis 0 of parts that are rounded, and added one by one in any order; each
        sum is rounded, the last as the result is.

        Math: every running sum is at most the sum of moduli, and a part goes through at most
        `count` roundings, the result's among them.

        Args:
            moduli: of the parts, with what they may be off by.
            count: of the parts that are not 0 by construction.
        """
        if count < 2:
            return cls.none(parts.sum(0))
        largest, total = moduli.sum(0), parts.sum(0)
        lost = 2 * count * precision.vanishing * (largest > 0)
        squares = parts.square().sum(0)
        sums = torch.stack(
            (
                partial_sums(squares, total, count),
                parts.cumsum(0).square().sum(0),
                parts.flip(0).cumsum(0).square().sum(0),  # autograd's: the last use first
            )
        )
        variance = precision.unit**2 / 3 * (squares + sums.amax(0))
        found = cls(precision.gamma(count - 1) * largest + lost, variance, lost)
        return replace(found, overflows=bool((largest > precision.largest).any()))

    @classmethod
    def of_terms(cls, moduli: Sequence[Tensor], precision: Precision) -> RoundingError:
        """Of terms that are rounded one by one, and added; the last sum is the result's.

        Args:
            moduli: of the terms, with what they may be off by.
        """
        found = cls.rounding(sum(moduli[1:], moduli[0]), max(0, len(moduli) - 2), precision)
        if len(moduli) > 1:
            for term in moduli:
                found += cls.rounding(term, 1, precision)
        return found

    def __add__(self, other: RoundingError) -> RoundingError:
        return RoundingError(
            self.bound + other.bound,
            self.variance + other.variance,
            self.lean + other.lean,
            self.overflows or other.overflows,
        )

    def mapped(
        self, linear: Callable[[Tensor], Tensor], squared: Callable[[Tensor], Tensor] | None = None
    ) -> RoundingError:
        """Through a linear map: the map of moduli, and that of the squares of its coefficients; by
        default the same, as of what sums, masks or moves elements.
        """
        of_squares = linear if squared is None else squared
        return RoundingError(
            linear(self.bound), of_squares(self.variance), linear(self.lean), self.overflows
        )

    def times(self, factor: Tensor) -> RoundingError:
        """Times an exact factor."""
        moduli = factor.abs()
        return self.mapped(lambda x: x * moduli, lambda x: x * moduli.square())

    def returned(self, value: Tensor, precision: Precision) -> RoundingError:
        """With the rounding of the result into its format, whose range the largest one may leave.
        What has no bound is not said to.
        """
        largest = value.abs() + self.bound
        found = self + RoundingError.rounding(
            torch.where(self.bound + value.abs() > 0, largest, value), 1, precision
        )
        known = value.abs() + self.bound.nan_to_num(posinf=0.0)
        return replace(found, overflows=found.overflows or bool((known > precision.largest).any()))


def partial_sums(squares: Tensor, total: Tensor, terms: float) -> Tensor:
    """The squares of all partial sums of n terms added in random order, on average, added up.

    Math: E S_k^2 = k/n ((n - k)/(n - 1) Q + (k - 1)/(n - 1) S^2), added up over k = 2..n, with Q
    the sum of squares and S the total.
    """
    if terms > 1:
        return squares * ((terms + 1) / 6 - 1 / terms) + total.square() * (terms + 1) / 3
    return torch.zeros_like(total)


@dataclass(frozen=True)
class Activation:
    """s = sigmoid(z); the gate z s or s, with slopes and curvatures that cannot overflow.

    Args:
        name: silu, sigmoid or none (the identity).
        z: float64.
        beside_one: whether a kernel's sigmoid is half of 1 + tanh(z / 2), or 1 - sigmoid(-z): where
            it is small it has the absolute error of numbers beside 1.
    """

    name: str
    z: Tensor
    beside_one: bool = False

    @property
    def sigmoid(self) -> Tensor:
        return torch.sigmoid(self.z)

    @property
    def value(self) -> Tensor:
        if self.name == "none":
            return self.z
        # -inf * 0: exactly 0 in the limit.
        if self.name == "silu":
            return torch.where(self.sigmoid == 0, torch.zeros_like(self.z), self.z * self.sigmoid)
        return self.sigmoid

    @property
    def slope(self) -> Tensor:
        s, rest = self.sigmoid, torch.sigmoid(-self.z)
        if self.name == "none":
            return torch.ones_like(s)
        return torch.where(s == 0, s, s * (1 + self.z * rest)) if self.name == "silu" else s * rest

    @property
    def slope_terms(self) -> tuple[Tensor, ...]:
        """What autograd adds where z is used twice, as in z sigmoid(z): slopes through each use."""
        if self.name != "silu":
            return (self.slope,)
        s, rest = self.sigmoid, torch.sigmoid(-self.z)
        return s, torch.where(s == 0, s, self.z * s * rest)

    def error(self, precision: Precision) -> RoundingError:
        """Of the value at an exact z: sigmoid to 2 ulp and the exponential's, and the product."""
        value = self.value
        if self.name == "none":
            return RoundingError.none(value)
        factor = self.z.abs().clamp(min=1.0) if self.name == "silu" else torch.ones_like(value)
        return RoundingError.leaning(
            self._relative(precision) * value.abs() + factor * self._lost(precision)
        ) + RoundingError.rounding(value, 1, precision)

    def slope_error(self, precision: Precision) -> RoundingError:
        """Of the slope s (1 + z (1 - s)) or s (1 - s) at an exact z; 1 - s rounds small s away."""
        s, rest, u = self.sigmoid, torch.sigmoid(-self.z), precision.unit
        if self.name == "none":
            return RoundingError.none(s)
        relative = self._relative(precision)
        z = torch.where(s == 0, torch.zeros_like(s), self.z.abs())
        beside_one = s * (s * relative + u)
        if self.name == "sigmoid":
            return RoundingError.leaning(
                s * rest * (relative + 3 * u) + beside_one + self._lost(precision)
            )
        moduli = s * (1 + z * rest)
        return RoundingError.leaning(
            moduli * (relative + 5 * u) + z * beside_one + (1 + z) * self._lost(precision)
        )

    def moved(self, error: RoundingError) -> RoundingError:
        """What an error of z makes of the value: slope and, over the interval, curvature."""
        return self._moved(error, self.slope.abs(), self._curvature(error.bound))

    def slope_moved(self, error: RoundingError) -> RoundingError:
        """What an error of z makes of the slope."""
        nothing = torch.zeros_like(error.bound)
        return self._moved(error, self._curvature(error.bound), nothing)

    def _moved(self, error: RoundingError, first: Tensor, second: Tensor) -> RoundingError:
        through = error.times(first)
        return RoundingError(
            through.bound + error.bound.square() * second / 2,
            through.variance,
            through.lean,
            through.overflows,
        )

    def _curvature(self, distance: Tensor) -> Tensor:
        """The largest second derivative within a distance of z, a bound:
        exp(-|z|) (2 + |z|), and 1/2 near 0.
        """
        if self.name == "none":
            return torch.zeros_like(self.z)
        away = (self.z.abs() - distance).clamp(min=0.0)
        factor = 2 + away if self.name == "silu" else torch.ones_like(away)
        return (factor * torch.exp(-away)).nan_to_num(nan=0.0).clamp(max=0.5)

    def _relative(self, precision: Precision) -> Tensor:
        """Of s: base-2 exponentials are off by 2 u |z| beside own 2 ulp, and count by 1 - s."""
        u = precision.unit
        exponent = 2 * u * self.z.abs().clamp(max=-2 * math.log(precision.smallest))
        return torch.sigmoid(-self.z) * (exponent + FUNCTION_UNITS * u) + (FUNCTION_UNITS + 2) * u

    def _lost(self, precision: Precision) -> Tensor:
        """What of s may vanish; nothing where it is so far below that nothing can come of it."""
        # Half of: the error of tanh, and the rounding of the sum.
        beside = (FUNCTION_UNITS + 1) / 2 * precision.unit if self.beside_one else 0.0
        return (precision.smallest + beside) * (self.sigmoid > precision.smallest * 2.0**-60)
