"""An arithmetic whose roundings happen in the backward of torch's autograd as well.

Autograd takes gradients through the same products, stores and solves as the forward. A stochastic
rounding that torch differentiates would be a constant: its backward would round nothing.
"""

# torch does not say what its functions return, nor what a context is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kdaverify.budgets.solves import Dot
from oracles.arithmetic import Arithmetic


def differentiable(arithmetic: Arithmetic) -> Arithmetic:
    """The same arithmetic under autograd: the gradient of a stored tensor is stored likewise, that
    of a product, or of a substitution, is made of products and substitutions like it.
    """

    def store(name: str, x: Tensor) -> Tensor:
        return _applied(_Stored, x, partial(arithmetic.store, name))

    def exp(x: Tensor) -> Tensor:
        return _applied(_Exponential, x, arithmetic.exp)

    def substitute(A: Tensor, r: Tensor) -> Tensor:
        return _applied(_Substitution, A, r, arithmetic)

    # What the gradients of products draw is not known before.
    return replace(
        arithmetic,
        store=store,
        dot=product(arithmetic.dot),
        exp=exp,
        substitute=substitute,
        computes_padding=True,
    )


def product(dot: Dot) -> Dot:
    """A dot product whose gradients are made of products like it."""
    return lambda a, b: _applied(_Product, a, b, dot)


def _applied(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    return function.apply(*given)  # pyright: ignore[reportReturnType]


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.keep = keep
        kept = keep(x)
        return kept.clone() if kept is x else kept

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return ctx.keep(grad_outputs[0]), None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dot: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.dot = dot
        return dot(a, b)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (a, b), (d,) = ctx.saved_tensors, grad_outputs
        da, db = ctx.dot(d, b.mT), ctx.dot(a.mT, d)
        return da.sum_to_size(a.shape), db.sum_to_size(b.shape), None


class _Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exp: Callable[[Tensor], Tensor]) -> Tensor:
        y = exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return grad_outputs[0] * ctx.saved_tensors[0], None


class _Substitution(torch.autograd.Function):
    """Math: (I + A) x = r; dr solves (I + A)^T dr = dx, and dA = -dr x^T below the diagonal."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, r: Tensor, arithmetic: Arithmetic) -> Tensor:
        x = arithmetic.substitute(A, r)
        ctx.save_for_backward(A, x)
        ctx.arithmetic = arithmetic
        return x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        A, x = ctx.saved_tensors
        # The transpose of a lower triangle is one again from the last row on.
        turned = A.mT.flip(-1, -2)
        dr = ctx.arithmetic.substitute(turned, grad_outputs[0].flip(-2)).flip(-2)
        return -ctx.arithmetic.dot(dr, x.mT).tril(-1), dr, None
