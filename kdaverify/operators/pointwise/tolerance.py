"""The tolerance of an operation beside the kernel, element by element.

A conforming kernel computes in fp32: operations round to nearest (u = 2^-24), units for exp, log,
1/x and 1/sqrt are good to a relative 2^-22, exponentials are of base 2 (so exp(y) is also off by 2
u |y|, from the rounded 1 / ln 2 and the rounded product), numbers below the normal range may
vanish, and every result is rounded once into its format. The bounds are what these errors come to
at first order, in any usual arrangement of the formulas of math.md 6: no constant is fitted.

Beside 1. log(1 + t) and 1 - s round away what is small beside 1, which log1p and exp(-|y|) / (1 +
exp(-|y|))^2 do not. In the softplus gate that is an absolute error of g of exp(A_log) (2^-24 +
2^-22 ln 2), and a relative one without limit: g = 0 below x = -16.6. The decay exp(g) of one token
is then off by no more than exp(A_log) roundings of it in fp32, which recurrent kernels make anyway;
but chunk kernels add g over tokens before they exponentiate, so over n tokens the logarithm of the
decay is off by n exp(A_log) 2^-24. At 10^5 tokens and a rate of 1 that is 6e-3, as much as bf16
storage costs. It therefore conforms where it is declared (`beside_one="rounded"`), and then the
relative error and that of the decay are reported; otherwise g is held to its relative error. The
slope of a sigmoid is off by s 2^-24 in the same way: a gradient that should have vanished is noise
of that size.

Sums. dA_log and ddt_bias are sums of n fp32 terms in any order: the roundings of a sum are off by
at most depth u times the sum of moduli, depth = min(n, 4 sqrt(n)). The second is what n roundings
come to if they are no worse than random. Source: Higham and Mary, A New Approach to Probabilistic
Rounding Error Analysis, 2019, theorem 2.4 with lambda = 4. Summands rounded to bf16 exceed it
nearly always up to some 2500 terms, and half of the time at 8000.

Not judged: elements where a factor or a partial product of the formula (exp(A_log), exp(A_log) dg,
sum of squares) is no fp32 number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import Format
from kdaverify.operators.pointwise.errors import BACKWARD, FORWARD, Error
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named

HIGHEST: Final = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class ResultTolerance:
    """What one result may be.

    Args:
        exact: float64.
        bound: of the error, float64, rounding into `format` included; inf where not judged.
        format: in which it is returned.
        kept: the bound of a kernel that keeps what is small beside 1.
    """

    exact: Tensor
    bound: Tensor
    format: Format
    kept: Tensor


def allowances(
    op: str,
    tensors: Named,
    setting: float,
    *,
    cotangent: Tensor | None,
    rounded: bool,
    formats: Mapping[str, Format],
) -> dict[str, ResultTolerance]:
    """What the result of an operation, or with a cotangent its gradients, may be.

    Args:
        op, tensors, setting: as of `oracles.pointwise.operations`; tensors as received.
        cotangent: of the result, or None for the forward.
        rounded: whether what is small beside 1 may be rounded away.
        formats: in which the result or the gradients are returned, by name.
    """
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    if cotangent is None:
        exact = OPERATIONS[op].forward(tensors, setting)
        errors = {OPERATIONS[op].result: FORWARD[op](wide, setting, exact)}
    else:
        gradients = OPERATIONS[op].vjp(tensors, cotangent, setting)
        errors = BACKWARD[op](wide, setting, cotangent, gradients)
    return {name: _returned(errors[name], fmt, rounded=rounded) for name, fmt in formats.items()}


def _returned(error: Error, fmt: Format, *, rounded: bool) -> ResultTolerance:
    """With the result's rounding; what is exactly 0 whatever is rounded stays 0."""
    nothing = (error.exact == 0) & (error.kept + error.rounded == 0)
    last = fmt.unit * error.exact.abs() + torch.where(nothing, 0.0, fmt.unit * fmt.min_normal)
    kept, added = ((1 + fmt.unit) * part for part in (error.kept, error.rounded))
    bound = torch.where(error.reach > HIGHEST, math.inf, last + kept + (added if rounded else 0.0))
    return ResultTolerance(error.exact, bound, fmt, last + kept)
