"""Faults in which head of another a head reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import Outputs, port, right
from oracles.inputs import Inputs


def key_heads_of_a_quotient(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The key head of a value head is cut from a multiple of a rounded quotient."""
    heads = torch.linspace(0, x.H, x.HV + 1)[:-1].int()
    return right(replace(x, q=x.q[:, :, heads], k=x.k[:, :, heads]))


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "the key head of a value head is cut from a rounded quotient": lambda: port(
        key_heads_of_a_quotient
    ),
}
"""By what is wrong."""
