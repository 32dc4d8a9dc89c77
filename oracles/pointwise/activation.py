"""The operations beside the kernel, both ways, in float64: gates, sigmoid of beta, l2norm.

Everything is formed from exponentials of something <= 0, exponents are added before they are
exponentiated, and the arguments of those exponentials carry what their rounding left out: no input
in range overflows, meets 0 * inf, or is inaccurate relative to its size in a tail. `UNITS` bounds
the relative error of every element in units of 2^-53, wherever the exact value is at least 1e-290.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles import double_double
from oracles.double_double import Pair, two_product, two_sum

L2NORM_EPS = 1e-6


@dataclass(frozen=True)
class GateGradients:
    """What a gate activation hands back: dz [B, T, HV, K], dA_log [HV], ddt_bias [HV, K]."""

    dz: Tensor
    dA_log: Tensor
    ddt_bias: Tensor


def softplus_gate(z: Tensor, A_log: Tensor, dt_bias: Tensor | None = None) -> Tensor:
    """Log decay by softplus.

    Math: section 6; g = -exp(A_log) softplus(z + dt_bias).

    Args:
        z: [B, T, HV, K], any floating-point type, |z| up to 1e4 and more.
        A_log: [HV], up to 100 in modulus and more.
        dt_bias: [HV, K], or None for zeros.
    Returns:
        g [B, T, HV, K], float64, finite and <= 0.
    """
    x, rest = _biased(z, dt_bias)
    rate, small = _rate(A_log), torch.exp(-x.abs())
    beyond = rate.exp() * (x + torch.log1p(small) + rest / (1 + small))
    # log(1 + e) / e, which is 1 where e vanishes: the factor e joins exp(A_log) before it can
    # underflow.
    share = torch.where(small > 2.0**-60, torch.log1p(small) / small.clamp(min=2.0**-60), 1.0)
    return -torch.where(x > 0, beyond, _exp_of_sum(rate, x.clamp(max=0.0), rest) * share)


def softplus_gate_vjp(
    z: Tensor, A_log: Tensor, dt_bias: Tensor | None, dg: Tensor
) -> GateGradients:
    """Gradients of `softplus_gate`.

    Math: section 6; dz = -exp(A_log) sigmoid(x) dg, dA_log = sum dg g, ddt_bias = sum dz. The sums
    are float64's own, good to a few units of the sum of moduli.

    Args:
        z, A_log, dt_bias: as of `softplus_gate`.
        dg: [B, T, HV, K], zero on padding.
    """
    x, rest = _biased(z, dt_bias)
    rate, small = _rate(A_log), torch.exp(-x.abs())
    slope = torch.where(x > 0, rate.exp(), _exp_of_sum(rate, x.clamp(max=0.0), rest)) / (1 + small)
    weight = dg.double()
    return _collect(-slope * weight, weight * softplus_gate(z, A_log, dt_bias))


def lower_bound_gate(
    z: Tensor, A_log: Tensor, dt_bias: Tensor | None = None, *, lower_bound: float = -5.0
) -> Tensor:
    """Log decay by a sigmoid, never below a bound.

    Math: section 6; g = lb sigmoid(exp(A_log) (z + dt_bias)).

    Args:
        z, A_log, dt_bias: as of `softplus_gate`.
        lower_bound: lb < 0.
    Returns:
        g [B, T, HV, K], float64, in [lb, 0].
    Raises:
        ValueError: lower_bound is not negative.
    """
    _check_bound(lower_bound)
    y, rest = _scaled(A_log, _biased(z, dt_bias))
    small = torch.exp(-y.abs())
    return (
        lower_bound
        * torch.where(y > 0, torch.ones_like(y), small * (1 + _within(rest, small)))
        / (1 + small)
    )


def lower_bound_gate_vjp(
    z: Tensor, A_log: Tensor, dt_bias: Tensor | None, dg: Tensor, *, lower_bound: float = -5.0
) -> GateGradients:
    """Gradients of `lower_bound_gate`.

    Math: section 6; dz = lb s (1 - s) exp(A_log) dg with s the sigmoid, dA_log = sum dz x, ddt_bias
    = sum dz.

    Args:
        z, A_log, dt_bias, lower_bound: as of `lower_bound_gate`.
        dg: [B, T, HV, K], zero on padding.
    Raises:
        ValueError: lower_bound is not negative.
    """
    _check_bound(lower_bound)
    x, x_rest = _biased(z, dt_bias)
    y, rest = _scaled(A_log, (x, x_rest))
    small = torch.exp(-y.abs())
    # s (1 - s) exp(A_log) = exp(A_log - |y|) / (1 + exp(-|y|))^2: the large factor and the small
    # one meet as exponents.
    slope = (
        _exp_of_sum(_rate(A_log), -y.abs(), torch.where(y > 0, -rest, rest)) / (1 + small).square()
    )
    dz = lower_bound * slope * dg.double()
    return _collect(dz, dz * x + dz * x_rest)


def beta_gate(logits: Tensor, *, doubled: bool = False) -> Tensor:
    """Write strength of its logits.

    Math: section 6; sigmoid(b), doubled when negative eigenvalues are allowed.
    """
    b = logits.double()
    small = torch.exp(-b.abs())
    return (2.0 if doubled else 1.0) * torch.where(b > 0, 1.0, small) / (1 + small)


def beta_gate_vjp(logits: Tensor, dbeta: Tensor, *, doubled: bool = False) -> Tensor:
    """Gradient of `beta_gate`: s (1 - s) dbeta, doubled alike."""
    small = torch.exp(-logits.double().abs())
    return (2.0 if doubled else 1.0) * small / (1 + small).square() * dbeta.double()


def l2norm(x: Tensor, *, eps: float = L2NORM_EPS) -> Tensor:
    """Rows of nearly unit length.

    Math: section 6; y = x / sqrt(sum x^2 + eps), eps inside the root.
    """
    return x.double() * _inverse_norm(x, eps)


def l2norm_vjp(x: Tensor, dy: Tensor, *, eps: float = L2NORM_EPS) -> Tensor:
    """Gradient of `l2norm`.

    Math: section 6; dx = r (dy - y <y, dy>) with r = 1 / sqrt(sum x^2 + eps). The two terms cancel
    where dy points along x: the error is within (K + 16) units of r (|dy| + |y| sum |y dy|), not of
    dx.
    """
    r, weight = _inverse_norm(x, eps), dy.double()
    y = x.double() * r
    return r * (weight - y * (y * weight).sum(-1, keepdim=True))


def _inverse_norm(x: Tensor, eps: float) -> Tensor:
    wide = x.double()
    # Rows past 1 are halved often enough that no square overflows; powers of two, so nothing is
    # rounded.
    exponent = torch.frexp(wide.abs().amax(-1, keepdim=True)).exponent.clamp(min=0)
    squares = torch.ldexp(wide, -exponent).square().sum(-1, keepdim=True)
    return torch.ldexp(
        torch.rsqrt(squares + torch.ldexp(torch.full_like(squares, eps), -2 * exponent)), -exponent
    )


def _rate(A_log: Tensor) -> Tensor:
    return A_log.double()[:, None]


def _biased(z: Tensor, dt_bias: Tensor | None) -> Pair:
    wide = z.double()
    return two_sum(
        wide, torch.zeros_like(wide) if dt_bias is None else dt_bias.double().expand_as(wide)
    )


def _scaled(A_log: Tensor, x: Pair) -> Pair:
    """exp(A_log) x, with what the rounding of exp, x and the product leaves out."""
    rate, rest = (part[:, None] for part in double_double.exp(A_log))
    product, left = two_product(rate.expand_as(x[0]), x[0])
    return product, left + rate * x[1] + rest * x[0]


def _exp_of_sum(a: Tensor, b: Tensor, rest: Tensor) -> Tensor:
    """exp(a + b + rest) for a small `rest`, good to a few units however large a and b are."""
    total, left = two_sum(a.expand_as(b), b)
    value = torch.exp(total)
    return value * (1 + _within(left + rest, value))


def _within(rest: Tensor, value: Tensor) -> Tensor:
    # What is left out of an argument past 1e4 is no longer small, but then its exponential is 0.
    return rest.masked_fill(value == 0, 0.0)


def _collect(dz: Tensor, by_rate: Tensor) -> GateGradients:
    return GateGradients(dz, by_rate.sum((0, 1, 3)), dz.sum((0, 1)))


def _check_bound(lower_bound: float) -> None:
    if not lower_bound < 0:
        raise ValueError(
            f"lower_bound: wanted a negative log decay, got {lower_bound}; -5 is usual"
        )
