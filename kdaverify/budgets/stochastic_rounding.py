"""One stochastic rounding: numbers moved as far as rounding may move them, whichever way it falls.

Source: Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS, Format
from oracles.arithmetic import Drawing, Samples, Shape

# Below this exponent fp32 has underflowed.
DEEPEST = 104.0
# Half a spacing over the value, averaged over the values of one binade, in units of roundoff: 1 at
# its foot, 1/2 at its top.
MEAN_UNIT = 0.72
# Numbers taken for nothing that memory holds at once.
SKIPPED_AT_ONCE = 2**20
# Terms agree if their squares add up to no more than their total's, to the precision of float64.
AGREEING = 1e-12


@dataclass(frozen=True)
class StochasticRounding(Samples):
    """Where the samples of roundings come from.

    Args:
        size: how many times too large they are made; 0 makes none.
        live, number: what is rounded lies in the first `live` of so many sequences; the samples of
            the others are taken for nothing.
    """

    rng: torch.Generator
    size: float = 1.0
    live: int = 1
    number: int = 1
    _count: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def draw(self, like: Tensor, fmt: Format) -> Tensor:
        """Relative errors as rounding to nearest makes them in `fmt`, one for every element."""
        # Sixteen bits are enough for each, and generating numbers is what takes time: four draws to
        # one.
        of_all = like.numel() // self.live * self.number
        bits = self._numbers(of_all).view(torch.int16)[: like.numel()].view(like.shape)
        return bits.to(like.dtype).mul_(2 * MEAN_UNIT * fmt.unit * self.size / 2**16)

    def _numbers(self, draws: int) -> Tensor:
        return self._taken(-(-draws // 4))

    def _taken(self, number: int) -> Tensor:
        self._count[0] += number
        return torch.empty(number, dtype=torch.int64, device=self.rng.device).random_(
            -(2**63), None, generator=self.rng
        )

    @property
    def taken(self) -> int:
        return self._count[0]

    def skip(self, number: int) -> None:
        for first in range(0, number, SKIPPED_AT_ONCE):
            self._taken(min(SKIPPED_AT_ONCE, number - first))

    def pass_over(self, draws: int) -> None:
        """Takes so many draws at once and leaves them unused."""
        self._numbers(draws)

    def of_first(self, live: int, number: int) -> StochasticRounding:
        """The same for what the first `live` of so many sequences hold."""
        return replace(self, live=live, number=number)

    def rounded(self, tensor: Tensor, fmt: Format, *, cut: bool = False) -> Tensor:
        """Every element that `fmt` cannot hold, moved by a random rounding to nearest or cut-off.

        Subnormals are as far apart as the smallest normal numbers; no rounding takes more than
        there is.
        """
        draw = self.draw(tensor, fmt)
        share = draw.sub_(MEAN_UNIT * fmt.unit) if cut else draw
        # As a factor: a comparison into booleans and a choice by them take five times as long.
        share.mul_(_inexact(fmt, tensor))
        # Laid out as the tensor is: products of matrices have other last bits in another layout.
        return tensor + _step(share, tensor, fmt, most=2 * fmt.unit * self.size)

    def dot(self, a: Tensor, b: Tensor, fmt: Format) -> Tensor:
        """A dot product summed in order, every partial sum rounded.

        Math: the squares of the n partial sums add up to about n/3 total^2 where the terms agree
        and n/2 sum(terms^2) where they cancel. A total that the format holds is exact where they
        agree; where they cancel, the partial sums that led to it need not be.
        """
        # Squares of factors of up to exp 60 overflow in fp32: samples were NaN, and with them the
        # limits of rows.
        total, squares = (a @ b).double(), a.double().square() @ b.double().square()
        n = a.shape[-1]
        sums = _partial_sums(total, squares, n) if n > 1 else total
        return self._moved(total, squares, sums, fmt).to(a.dtype)

    def row_sum(self, products: Tensor, fmt: Format) -> Tensor:
        """A sum over the last axis of rounded products, every partial sum rounded too.

        Without it the samples of dbeta had half the error of the emulated kernels, and single
        elements of a right one were rejected at 1.3 to 2 times their tolerance.
        """
        total, squares = products.sum(-1), products.square().sum(-1)
        size = (_partial_sums(total, squares, products.shape[-1]).square() + squares).sqrt()
        return self._moved(total, squares, size, fmt)

    def _moved(self, total: Tensor, squares: Tensor, size: Tensor, fmt: Format) -> Tensor:
        """A sum with a random error of `size` roundoffs, where it is not exact."""
        missed = self.draw(total, fmt).mul_(size)
        return total + missed.masked_fill_(_is_exact(total, squares, fmt), 0.0)

    def substitution(self, A: Tensor, R: Tensor, fmt: Format) -> Tensor:
        """Errors of the inverse R of I + A found row by row, all partial sums rounded.

        Math: R = I - A R + E moves R by R E to first order. Element i, j is a sum of i - j terms,
        the first of them A_ij itself.
        """
        row = torch.arange(A.shape[-1], device=A.device)
        total = A @ R
        squares = A.square() @ R.square()
        roundings = (row[:, None] - row - 1).clamp(min=0)
        E = _partial_sums(total, squares, roundings) * self.draw(total, fmt)
        return R @ E.masked_fill_(_is_exact(total, squares, fmt), 0.0)

    def substituted(self, A: Tensor, right: Tensor, fmt: Format) -> Tensor:
        """(I + A)^-1 r found row by row, every partial sum of a row rounded.

        Math: x_i = r_i - A_i x: rounding the sum of i + 1 terms moves x by (I + A)^-1 E.
        """
        x = _solved(A, right)
        terms = torch.arange(A.shape[-1], device=A.device)[:, None]
        squares = right.square() + A.square() @ x.square()
        # Of one term nothing is rounded.
        sizes = _partial_sums(x, squares, terms + 1).masked_fill(terms == 0, 0.0)
        E = sizes * self.draw(x, fmt)
        return x + _solved(A, E.masked_fill_(_is_exact(x, squares, fmt), 0.0))

    def exp(self, x: Tensor, fmt: Format, *, argument: bool) -> Tensor:
        """exp with result and argument rounded: an error of (|x| + 1) units, or 1; exp 0 exact."""
        decay = x.exp()
        units = x.clamp(min=-DEEPEST).add_(x.sign()) if argument else x.sign()
        return decay.addcmul_(decay, self.draw(x, fmt).mul_(units))

    def cumsum(self, terms: Tensor, fmt: Format, *, scaled: bool) -> Tensor:
        """The errors of running sums over the rows of `terms`.

        Every partial sum is rounded, and each rounding stays in all later ones; what is made of it
        for a base-2 unit, where it is `scaled`, is rounded again. Whole numbers, as gates at a
        bound often are, sum to whole numbers; divided by ln 2 they are none. A term of 0 leaves the
        number before, which is rounded as it was.
        """
        exact, nothing = terms.cumsum(-2), terms == 0
        missed = (self.rounded(exact, fmt) - exact).masked_fill_(nothing, 0.0).cumsum(-2)
        if scaled:
            return missed.addcmul_(exact, _of_the_last(self.draw(exact, fmt), ~nothing))
        return missed

    def in_any_order(self, total: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The same sum of its terms in another order."""
        return lambda terms: total(
            terms[..., torch.randperm(terms.shape[-1], generator=self.rng, device=terms.device)]
        )


@dataclass(frozen=True)
class DrawnSum(Drawing):
    """Dot products with every partial sum rounded."""

    rounding: StochasticRounding
    fmt: Format

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self.rounding.dot(a, b, self.fmt)

    def pass_over(self, *shapes: Shape) -> None:
        a, b = shapes
        # That of torch imports SymPy: 0.7 s of every process.
        many = np.broadcast_shapes(a[:-2], b[:-2])
        self.rounding.pass_over(prod(many) * a[-2] * b[-1])

    def of_first(self, live: int, number: int) -> DrawnSum:
        return replace(self, rounding=self.rounding.of_first(live, number))


@dataclass(frozen=True)
class DrawnOperands(Drawing):
    """Dot products with both operands rounded, or cut off."""

    rounding: StochasticRounding
    fmt: Format
    cut: bool

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self._operand(a) @ self._operand(b)

    def _operand(self, x: Tensor) -> Tensor:
        return self.rounding.rounded(x, self.fmt, cut=self.cut)

    def pass_over(self, *shapes: Shape) -> None:
        for shape in shapes:
            self.rounding.pass_over(prod(shape))

    def of_first(self, live: int, number: int) -> DrawnOperands:
        return replace(self, rounding=self.rounding.of_first(live, number))


@dataclass(frozen=True)
class DrawnExp(Drawing):
    """Exponentials rounded, and their arguments too."""

    rounding: StochasticRounding
    fmt: Format
    argument: bool

    def __call__(self, x: Tensor) -> Tensor:
        return self.rounding.exp(x, self.fmt, argument=self.argument)

    def pass_over(self, *shapes: Shape) -> None:
        (shape,) = shapes
        self.rounding.pass_over(prod(shape))

    def of_first(self, live: int, number: int) -> DrawnExp:
        return replace(self, rounding=self.rounding.of_first(live, number))


def _step(share: Tensor, tensor: Tensor, fmt: Format, *, most: float) -> Tensor:
    """`share` of every element, at least of the smallest normal number, at most of all.

    Args:
        most: what no share exceeds.
    """
    # Of an infinity, which every format holds, the share is 0: the step is no NaN.
    tensor = tensor.clamp(-torch.finfo(tensor.dtype).max, torch.finfo(tensor.dtype).max)
    # What is subnormal in the working type too is not worth it: a CPU multiplies subnormal numbers
    # thirty times as slowly, and zeros, which are many, would take shares of the smallest normal
    # number.
    if fmt.min_normal <= torch.finfo(tensor.dtype).tiny:
        return share.mul_(tensor)
    size = tensor.abs()
    # Of zeros, which are many, every share is 0: with 1 in their place the smallest is another's.
    zeros = torch.eq(size, 0.0, out=torch.empty_like(size)) if most <= 1 else 0.0
    if size.numel() and float((size + zeros).amin()) >= fmt.min_normal:
        # No share is larger than 1: half of the operations say the same.
        return share.mul_(tensor)
    return share.mul_(size.clamp(min=fmt.min_normal)).clamp_(-size, size).mul_(tensor.sign())


def _solved(A: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)


def _of_the_last(rows: Tensor, new: Tensor) -> Tensor:
    """Every row's value where it is new, and that of the last one that was where it is not."""
    numbers = torch.arange(rows.shape[-2], device=rows.device)[:, None].expand_as(rows)
    return rows.gather(-2, numbers.masked_fill(~new, 0).cummax(-2).values)


def _partial_sums(total: Tensor, squares: Tensor, n: int | Tensor) -> Tensor:
    """Root of the squared partial sums of n terms, from their sum and that of their squares."""
    return total.square().mul_(n / 3).add_(squares * (n / 2)).sqrt_()


def _is_exact(total: Tensor, squares: Tensor, fmt: Format) -> Tensor:
    return _holds(fmt, total) & (total.square() >= (1 - AGREEING) * squares)


def _holds(fmt: Format, tensor: Tensor) -> Tensor:
    return _nearest(fmt, tensor) == tensor


def _inexact(fmt: Format, tensor: Tensor) -> Tensor:
    """1 where the format rounds an element, else 0; in its type."""
    return torch.ne(_nearest(fmt, tensor), tensor, out=torch.empty_like(tensor))


def _nearest(fmt: Format, tensor: Tensor) -> Tensor:
    # float64 cannot see what it cannot hold itself: there, what fits in fp32 is taken to be exact.
    return (FORMATS["fp32"] if fmt.name == "fp64" else fmt).round(tensor)
