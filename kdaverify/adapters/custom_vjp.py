"""A function that leaves torch, in torch's graph: its backward is a VJP computed outside."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kdaverify.adapters.isolation.fault import CallFailure
from oracles.autograd import ForwardOnlyError

Forward = Callable[..., Sequence[Tensor]]
VJP = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]

# What torch and JAX raise where a function has no derivative. Any other exception of a backward is
# an error of the kernel.
NO_DERIVATIVE: Final = re.compile(
    # JAX: a primitive without a differentiation or transposition rule; a custom backward that is
    # not there
    r"NotImplementedError"
    r"|Tensor that requires grad"  # torch: the kernel leaves torch for NumPy or a runtime
    r"|TracerArrayConversionError"  # JAX: likewise
    # JAX: while_loop, fori_loop with a dynamic length
    r"|Reverse-mode differentiation does not work"
    r"|Linearization failed to produce known values"  # JAX: a pallas_call or callback without a JVP
)


def with_vjp(forward: Forward, vjp: VJP, *tensors: Tensor) -> tuple[Tensor, ...]:
    """What `forward` makes of the tensors, with `vjp` as its backward.

    Args:
        forward: takes the tensors, detached, returns the outputs.
        vjp: takes the same tensors and a cotangent of every output (zeros where no loss depends on
            it), returns the gradient of every tensor.
    Raises:
        ForwardOnlyError: in the backward, where the function has no derivative.
    """
    return _WithVjp.apply(forward, vjp, *tensors)


class _WithVjp(Function):
    @staticmethod
    def forward(ctx: Any, forward: Forward, vjp: VJP, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.vjp = vjp
        # The version counters of saved tensors turn an edit between forward and backward into an
        # error.
        ctx.save_for_backward(*tensors)
        return tuple(forward(*(tensor.detach() for tensor in tensors)))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *cotangents: Tensor
    ) -> tuple[Tensor | None, ...]:
        try:
            return (
                None,
                None,
                *ctx.vjp([tensor.detach() for tensor in ctx.saved_tensors], cotangents),
            )
        except Exception as error:
            if _has_no_derivative(error):
                raise ForwardOnlyError(
                    str(error).partition("\n")[0] or type(error).__name__
                ) from error
            raise


def _has_no_derivative(error: Exception) -> bool:
    # A process that died may have printed anything before.
    died = isinstance(error, CallFailure) and error.kind != "ERROR"
    return not died and NO_DERIVATIVE.search(f"{type(error).__name__}: {error}") is not None
