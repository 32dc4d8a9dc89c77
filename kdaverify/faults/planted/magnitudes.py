"""Faults of values beyond fp16's range, which bf16 and fp32 hold: large problems alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import Eager
from kdaverify.faults.planted.broken_calls import Outputs, port, right
from kdaverify.faults.planted.shapes import RIGHT, ShapeFault, ShapeOutput
from oracles.inputs import Inputs

StateChange = Callable[[Tensor], Tensor]
LARGEST: Final = 65504.0
"""The largest finite number of fp16."""
LONGEST: Final = 2.0


def unchanged(x: Tensor) -> Tensor:
    """The change that is none."""
    return x


def _saturated(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST)


def _infinite(x: Tensor) -> Tensor:
    # Filled, not multiplied: the gradient of 0 * inf would be a second fault.
    return x.masked_fill(x > LARGEST, torch.inf).masked_fill(x < -LARGEST, -torch.inf)


def keys_cut(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """As if no product of two keys could be above 4."""
    size = x.k.float().norm(dim=-1, keepdim=True).clamp(min=LONGEST)
    return right(replace(x, k=(x.k * (LONGEST / size)).to(x.k.dtype)))


def _written(name: str, change: Callable[[Tensor], Tensor]) -> ShapeOutput:
    """A tile that leaves through a buffer of fp16."""
    return lambda _, found: replace(found, **{name: change(getattr(found, name))})


def _everywhere(output: ShapeOutput) -> ShapeFault:
    return ShapeFault("smoke", lambda x: not x.backward, output=output)


class OfStates(Eager):
    """A kernel of fp16 whose states are fp32, with its initial or its final state changed."""

    def __init__(
        self,
        initial: StateChange = unchanged,
        final: StateChange = unchanged,
        *,
        of_step: StateChange = unchanged,
    ) -> None:
        super().__init__("of-states", {"fp16": "recurrent-fp32"})
        self._initial, self._final, self._of_step = initial, final, of_step

    def step(self, inputs: Inputs) -> Output:
        state = inputs.initial_state
        given = inputs if state is None else replace(inputs, initial_state=self._of_step(state))
        return super().forward(given)

    def forward(self, inputs: Inputs) -> Output:
        state = inputs.initial_state
        given = inputs if state is None else replace(inputs, initial_state=self._initial(state))
        found = super().forward(given)
        return replace(found, final_state=self._final(found.final_state))


FAULTS: Final = {
    "o stops at 65504": _everywhere(_written("o", _saturated)),
    "o is infinite past 65504": _everywhere(_written("o", _infinite)),
    "the final state stops at 65504": _everywhere(_written("final_state", _saturated)),
    "v stops at 65504": _everywhere(lambda x, _: RIGHT.forward(replace(x, v=_saturated(x.v)))),
}
"""By trigger."""
STATES: Final[dict[str, Callable[[], Adapter]]] = {
    "an initial state stops at 65504 beside fp16": lambda: OfStates(_saturated),
    "a final state stops at 65504 beside fp16": lambda: OfStates(final=_saturated),
    "a final state is infinite past 65504 beside fp16": lambda: OfStates(final=_infinite),
}
KEYS: Final[dict[str, Callable[[], Adapter]]] = {
    "keys are cut to a norm of 2": lambda: port(keys_cut),
}
OF_STEPS: Final[dict[str, Callable[[], Adapter]]] = {
    "a state stops at 65504 in a decode step beside fp16": lambda: OfStates(of_step=_saturated),
}
"""By what is wrong."""
