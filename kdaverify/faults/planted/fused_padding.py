"""Kernels that activate x, take the sigmoid of beta and normalise q and k themselves: of all rows,
those past the last offset too, or of sequences alone.

NaN in a row that is masked afterwards is NaN in its gradient, and in that of every weight before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import Outputs, right
from kdaverify.faults.planted.magnitudes import LARGEST
from oracles.inputs import Inputs
from oracles.row_norm import EPSILON

ACTIVATED: Final = ("q", "k", "g", "beta")


def unit_rows(x: Tensor) -> Tensor:
    """Math: x / sqrt(|x|^2 + eps)."""
    return x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()


def fused(late: Collection[str] = (), norm: Callable[[Tensor], Tensor] = unit_rows) -> Adapter:
    """A kernel of raw inputs.

    Args:
        late: the inputs whose padding is masked after their activation, not before it.
        norm: of rows of q and k.
    """

    @kernel(
        name="fused",
        contract="chunk64-fp32",
        gate="softplus",
        beta="logit",
        qk="l2norm",
        packing="cu_seqlens",
        dtypes=("fp32",),
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        A_log: Tensor,
        dt_bias: Tensor,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Outputs:
        amplitude = A_log.exp()[:, None]
        maps: dict[str, Callable[[Tensor], Tensor]] = {
            "q": norm,
            "k": norm,
            "g": lambda x: -amplitude * softplus(x + dt_bias, threshold=30.0),
            "beta": torch.sigmoid,
        }
        given = {"q": q, "k": k, "g": g, "beta": beta}
        q, k, g, beta = (
            _of_sequences(maps[name], given[name], cu_seqlens, late=name in late)
            for name in ACTIVATED
        )
        return right(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))

    return call


def _of_sequences(
    activate: Callable[[Tensor], Tensor], x: Tensor, cu_seqlens: Tensor | None, *, late: bool
) -> Tensor:
    if cu_seqlens is None:
        return activate(x)
    behind = (torch.arange(x.shape[1]) >= int(cu_seqlens[-1])).view(1, -1, *[1] * (x.ndim - 2))
    if late:
        return activate(x).masked_fill(behind, 0.0)
    return activate(x.masked_fill(behind, 0.0)).masked_fill(behind, 0.0)


def _within_fp16(x: Tensor) -> Tensor:
    return x / ((x.square().sum(-1, keepdim=True) + EPSILON).clamp(max=LARGEST)).sqrt()


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "padding is masked behind the sigmoid of beta": partial(fused, ("beta",)),
    "padding is masked behind the activation of the gate": partial(fused, ("g",)),
    "padding is masked behind the norm of q and k": partial(fused, ("q", "k")),
}
"""By what is wrong."""
OF_ROWS: Final[dict[str, Callable[[], Adapter]]] = {
    "sums of squares of rows stop at 65504": partial(fused, norm=_within_fp16),
}
"""Of rows that are longer than 256."""


def twin(_: Adapter) -> Adapter:
    """The kernel of raw inputs without a fault."""
    return fused()
