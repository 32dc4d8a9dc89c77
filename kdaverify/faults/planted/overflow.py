"""Wrong gradients in calls where another overflows: skipped calls would hide them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.eager import EAGER, EAGER_RECURRENT, Eager
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

DTYPE: Final = "fp16"
LARGE: Final = 1e3
Change = Callable[[Gradients[Tensor]], Gradients[Tensor]]


@dataclass(frozen=True)
class OverflowFault:
    """A change to one gradient of a kernel in the calls in which another one overflows."""

    kernel: Eager
    output: str
    change: Change


class Overflowing(Eager):
    """An embedded fp16 kernel, with a change to gradients of calls in which one overflows."""

    def __init__(self, kernel: Eager, change: Change) -> None:
        super().__init__(kernel.name, {DTYPE: kernel.contract(DTYPE).name})
        self._change = change

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        # A gradient that nobody requested, as of an absent state, is None.
        finite = all(bool(torch.isfinite(x).all()) for x in vars(found).values() if x is not None)
        return found if finite or found.d_initial_state is None else self._change(found)


def unchanged(found: Gradients[Tensor]) -> Gradients[Tensor]:
    """The change that is none."""
    return found


def _nan_where_large(x: Tensor) -> Tensor:
    return torch.where(x.abs() > LARGE, torch.nan, x)


FAULTS: Final = {
    "dv halved": OverflowFault(EAGER, "dv", lambda x: replace(x, dv=x.dv / 2)),
    "gradient of the initial state dropped": OverflowFault(
        EAGER, "d_initial_state", lambda x: replace(x, d_initial_state=0 * x.d_initial_state)
    ),
    "dv non-finite like dg": OverflowFault(
        EAGER, "dv", lambda x: replace(x, dv=_nan_where_large(x.dv))
    ),
    "dv of the wrong sign, token by token": OverflowFault(
        EAGER_RECURRENT, "dv", lambda x: replace(x, dv=-x.dv)
    ),
    "dg without its last token": OverflowFault(
        EAGER_RECURRENT,
        "dg",
        lambda x: replace(x, dg=torch.cat([x.dg[:, :-1], 0 * x.dg[:, -1:]], 1)),
    ),
}
