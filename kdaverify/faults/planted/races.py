"""Planted races of real sizes: a thousand tokens, eight heads, 64 channels, many calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

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
    """One element of one head, changed in its last bit in some of the calls of some sizes."""

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        o, final = right(x)
        if at(x) and in_call(counted(kept)):
            struck, where = (o, (0, 0, head, 0)) if output == "o" else (final, (0, head, 0, 0))
            struck[where] = torch.nextafter(struck[where], struck.new_tensor(torch.inf))
        return o, final

    return patch


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
    "widths": lambda: port(race(lambda x: x.K >= 64, lambda n: n % 5 == 0, "final_state", 0)),
    "last call": lambda: port(race(lambda x: x.T >= FILLS, lambda n: n == 10, "final_state", 3)),
    "heads": lambda: port(stale_head),
}
BACKWARD: dict[str, Callable[[], Adapter]] = {"sums": lambda: Derived(sums_in_any_order)}


def too_rare() -> Adapter:
    """The race comes one call after those that acceptance makes on a CPU."""
    return port(race(lambda x: x.T >= FILLS, lambda n: n == 11, "o", 0))
