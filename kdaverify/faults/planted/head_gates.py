"""Kernels of one gate a head in conventions of their own: gates in base 2, tiled heads, states
[N, HV, V, K]. A right one, and faults that a conversion of the harness could hide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import Eager
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_calls import DTYPES, Outputs
from oracles.inputs import Inputs

Patch = Callable[[Inputs], Inputs]
Outcome = Callable[[Tensor], Tensor]
_EMBEDDED: Final = Eager("head-gates", dict.fromkeys(DTYPES, "gdn64"), "head")


def by_heads(patch: Patch = lambda x: x, outcome: Outcome = lambda o: o) -> Adapter:
    """A kernel of packs and batches, with its inputs or o changed.

    Args:
        patch: of the call, in canonical axes of the kernel's own memory, with gates in base 2.
    """

    @kernel(
        name="by-heads",
        gates="head",
        gate="log2",
        heads="tiled",
        state="vk",
        contract="gdn64",
        packing="cu_seqlens",
        dtypes=DTYPES,
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Outputs:
        state = None if initial_state is None else initial_state.mT
        o, final = _run(patch(Inputs(q, k, v, g.unsqueeze(-1), beta, scale, state, cu_seqlens)))
        return outcome(o), final.mT.contiguous()

    return call


def _run(x: Inputs) -> Outputs:
    """Key heads repeated, one for each value head: those of tiled heads are."""
    shared = x.HV // x.H
    found = _EMBEDDED.forward(
        replace(
            x, q=x.q.repeat(1, 1, shared, 1), k=x.k.repeat(1, 1, shared, 1), g=x.g * math.log(2)
        )
    )
    return found.o, found.final_state


def _gate_by_address(x: Inputs) -> Inputs:
    g = x.g.squeeze(-1)
    dense = g.as_strided(g.shape, torch.empty(g.shape, device="meta").stride())
    return replace(x, g=dense.masked_fill(dense.isnan(), 0.0).unsqueeze(-1))


class _GateOfBeta(torch.autograd.Function):
    """Gate and beta as they are; one kernel computes both gradients, where beta needs one."""

    @staticmethod
    def forward(_: Any, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        return g.clone(), beta.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, Tensor | None]:
        dg, dbeta = given
        return (dg, dbeta) if ctx.needs_input_grad[1] else (None, None)


def _dense_cotangent(o: Tensor) -> Tensor:
    """The backward of o reads the incoming gradient by address and shape."""

    def change(do: Tensor) -> Tensor:
        dense = torch.empty(do.shape, device="meta").stride()
        return do.as_strided(do.shape, dense).nan_to_num(0.0) if all(do.stride()) else do

    return with_gradient(change, o)


def _gate_of_beta(x: Inputs) -> Inputs:
    g, beta = _GateOfBeta.apply(x.g, x.beta)  # pyright: ignore[reportGeneralTypeIssues]
    return replace(x, g=g, beta=beta)


def _decoded_in_place(x: Inputs) -> Inputs:
    """One token, no gradients: the decayed state is left where the given one lay."""
    if x.T == 1 and x.initial_state is not None and not torch.is_grad_enabled():
        before = x.initial_state.clone()
        x.initial_state.mul_(x.g.exp2().transpose(1, 2))
        return replace(x, initial_state=before)
    return x


RIGHT: Final = by_heads()
OF_MEMORY: Final[dict[str, Callable[[], Adapter]]] = {
    "strides of the gradient of o are ignored, by a kernel of tiled heads": lambda: by_heads(
        outcome=_dense_cotangent
    ),
    "strides of a gate in base 2 are ignored": lambda: by_heads(_gate_by_address),
}
OF_AUTOGRAD: Final[dict[str, Callable[[], Adapter]]] = {
    "the gradient of a gate in base 2 is left out where beta needs none": lambda: by_heads(
        _gate_of_beta
    ),
    "one token without gradients: the given state is updated in place": lambda: by_heads(
        _decoded_in_place
    ),
}
"""By what is wrong."""


def twin(_: Adapter) -> Adapter:
    """The kernel of these conventions without a fault."""
    return RIGHT
