"""Planted races of real sizes: a thousand tokens, eight heads, 64 channels, many calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import Outputs, Patch, counted, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

FILLS = 1024
"""Tokens from which the planted work space is shared."""


def race(
    at: Callable[[Inputs], bool], in_call: Callable[[int], bool], output: str, head: int
) -> Patch:
    """The largest element of one head, changed in its last bit in some of the calls of some sizes:
    an exact 0 that is none shows without a second call.
    """

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        o, final = right(x)
        if not (at(x) and in_call(counted(kept))):
            return o, final
        return (_struck(o, 2, head), final) if output == "o" else (o, _struck(final, 1, head))

    return patch


def _struck(output: Tensor, heads: int, head: int) -> Tensor:
    """An output [.., heads, ..] with the largest element of one head a bit further from 0."""
    value = output.detach()
    sizes, moved = torch.zeros_like(value), torch.zeros_like(value).flatten()
    sizes.select(heads, head).copy_(value.select(heads, head).abs())
    at = sizes.argmax()
    old = value.flatten()[at]
    moved[at] = torch.nextafter(old, old.sign() * torch.inf) - old
    return output + moved.view_as(output)


def stale_head(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """In one call of seven the last of eight heads reads the keys of the first."""
    if x.H < 8 or counted(kept) % 7:
        return right(x)
    k = x.k.clone()
    k[:, :, -1] = k[:, :, 0]
    return right(replace(x, k=k))


def sums_in_any_order(x: Inputs, given: Cotangents, kept: dict[Any, Any]) -> Gradients[Any]:
    """Blocks of a long call add to dg in the order in which they end."""
    found = EAGER.gradients(x, given)
    return (
        replace(found, dg=found.dg * (1 + 1e-7)) if x.T >= FILLS and counted(kept) == 3 else found
    )


FORWARD: dict[str, Callable[[], Adapter]] = {
    "tokens": lambda: port(race(lambda x: x.T >= FILLS, lambda n: n % 5 == 0, "o", 0)),
    "tokens and heads": lambda: port(
        race(lambda x: x.T >= FILLS and x.HV >= 8, lambda n: n % 5 == 0, "o", 7)
    ),
    "widths": lambda: port(
        race(
            lambda x: x.T >= FILLS and x.HV >= 8 and x.K >= 64,
            lambda n: n % 5 == 0,
            "final_state",
            0,
        )
    ),
    "last call": lambda: port(
        race(lambda x: x.T >= FILLS and x.HV >= 8, lambda n: n % 10 == 0, "final_state", 3)
    ),
    "heads": lambda: port(stale_head),
}
BACKWARD: dict[str, Callable[[], Adapter]] = {"sums": lambda: Derived(sums_in_any_order)}


def too_rare() -> Adapter:
    """The race comes one call after those that acceptance makes on a CPU."""
    return port(race(lambda x: x.T >= FILLS, lambda n: n == 11, "o", 0))
