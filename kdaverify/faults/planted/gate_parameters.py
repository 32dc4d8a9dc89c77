"""Gradients of the parameters of a gate that leave out what other tokens, entries or heads add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_calls import DTYPES, Outputs, right
from kdaverify.faults.planted.magnitudes import unchanged
from oracles.inputs import Inputs

TILE: Final = 64
Change = Callable[[Tensor], Tensor]


def first_entry(dx: Tensor) -> Tensor:
    """[B, T, HV, K] of the first batch entry alone."""
    return torch.cat((dx[:1], torch.zeros_like(dx[1:])))


def whole_tiles(dx: Tensor) -> Tensor:
    """Without the tail behind the last whole tile of tokens."""
    end = dx.shape[1] // TILE * TILE or dx.shape[1]
    return torch.cat((dx[:, :end], torch.zeros_like(dx[:, end:])), 1)


@dataclass(frozen=True)
class GatedKernel:
    """The right kernel behind an activation, the gradients of whose parameters are changed.

    Args:
        of_A_log, of_dt_bias: change what each token adds, [B, T, HV, K].
    """

    of_A_log: Change = unchanged
    of_dt_bias: Change = unchanged

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
    ) -> Outputs:
        a = with_gradient(self.of_A_log, A_log.float()[:, None].expand_as(g)).exp()
        bias = with_gradient(self.of_dt_bias, dt_bias.float().expand_as(g))
        return right(
            Inputs(q, k, v, -a * softplus(g + bias), beta, scale, initial_state, cu_seqlens)
        )


def gated(**changes: Change) -> Adapter:
    return kernel(
        GatedKernel(**changes),
        name="port",
        gate="softplus",
        contract={"fp32": "chunk64-fp32", "bf16": "chunk64-bf16"},
        packing="cu_seqlens",
        dtypes=DTYPES,
    )


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "ddt_bias is that of the first batch entry": lambda: gated(of_dt_bias=first_entry),
    "dA_log is that of the first batch entry": lambda: gated(of_A_log=first_entry),
    "ddt_bias lacks the tokens behind the last whole tile": lambda: gated(of_dt_bias=whole_tiles),
    "dA_log is of the gates, not of its logarithm": lambda: gated(of_A_log=lambda dx: 2 * dx),
}
"""By what is wrong."""


def twin(_: Any = None) -> Adapter:
    """The same kernel with all gradients right."""
    return gated()
