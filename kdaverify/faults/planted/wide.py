"""Faults of widths past 128, where kernels begin another tile: ordinary widths show none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.faults.planted.shapes import RIGHT, ShapeFault, ShapeOutput, halved
from oracles.gradients import Gradients
from oracles.inputs import Inputs

TILE: Final = 128
WIDEST: Final = 256
THREE_TILES: Final = 288
"""Columns of values that a backward has tiles for."""


def _first_columns_again(_: Inputs, found: Output) -> Output:
    """The second tile of values holds the columns of the first."""
    o = found.o.clone()
    o[..., TILE:] = found.o[..., : o.shape[-1] - TILE]
    return replace(found, o=o)


def _late_columns_from_zero(x: Inputs, _: Output) -> Output:
    """A second grid of values starts from no state."""
    state = x.state.clone()
    state[..., WIDEST:] = 0
    return RIGHT.forward(replace(x, initial_state=state))


def _rows_unwritten(first: int) -> ShapeOutput:
    def changed(x: Inputs, found: Output) -> Output:
        final = found.final_state.clone()
        final[..., first:, :] = x.state[..., first:, :]
        return replace(found, final_state=final)

    return changed


def _second_tile_lost(name: str) -> Callable[[Gradients[Tensor]], Gradients[Tensor]]:
    def changed(found: Gradients[Tensor]) -> Gradients[Tensor]:
        wrong: Tensor = found.named()[name].clone()
        wrong[..., TILE:] = 0
        return replace(found, **{name: wrong})

    return changed


FAULTS: Final = {
    "K past 128, backward": ShapeFault(
        "smoke", lambda x: x.backward and x.K > TILE, gradients=_second_tile_lost("dk")
    ),
    "V past 128, backward": ShapeFault(
        "smoke", lambda x: x.backward and x.V > TILE, gradients=_second_tile_lost("dv")
    ),
    "V past 128": ShapeFault(
        "smoke", lambda x: not x.backward and x.V > TILE, output=_first_columns_again
    ),
    "K of 256": ShapeFault(
        "smoke", lambda x: not x.backward and x.K == WIDEST, output=_rows_unwritten(192)
    ),
    "V of 256, several sequences": ShapeFault(
        "smoke", lambda x: x.V == WIDEST and x.several, output=_first_columns_again
    ),
    "V past 256, a given state": ShapeFault(
        "smoke",
        lambda x: x.V > WIDEST and x.state and not x.backward,
        output=_late_columns_from_zero,
    ),
    "V past 288, backward": ShapeFault(
        "smoke", lambda x: x.backward and x.V > THREE_TILES, gradients=halved("dk")
    ),
}
"""By trigger."""
