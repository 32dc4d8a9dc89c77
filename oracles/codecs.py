"""What may replace a log decay or a write strength: values there and back, gradients.

A kernel that takes exp(g) or logit(beta) is judged on what it receives: the exact result is that of
`back` of the received tensor, and the gradient is the one with respect to that tensor, which is the
canonical gradient times `slope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Map = Callable[[Tensor], Tensor]
LN_2: Final = math.log(2.0)


@dataclass(frozen=True)
class Codec:
    """One elementwise convention of one tensor, in float64.

    Math: received = there(canonical); canonical = back(received); dL/d received = dL/d canonical *
    slope(received).

    Args:
        there, back: inverse to each other on the domain; NaN stays NaN, so that poisoned padding
            stays poisoned.
        slope: d canonical / d received; not finite where the canonical value has no finite
            derivative.
    """

    there: Map
    back: Map
    slope: Map

    @property
    def converts(self) -> bool:
        """Whether a value is changed at all."""
        return self is not IDENTITY


def _same(x: Tensor) -> Tensor:
    return x


IDENTITY: Final = Codec(_same, _same, torch.ones_like)
GATES: Final[dict[str, Codec]] = {
    "log": IDENTITY,
    "log2": Codec(lambda g: g / LN_2, lambda x: x * LN_2, lambda x: torch.full_like(x, LN_2)),
    "decay": Codec(torch.exp, torch.log, torch.reciprocal),
}
"""Of g: log (natural), log2 (g / ln 2), decay (exp g; a hard reset is 0)."""
BETAS: Final[dict[str, Codec]] = {
    "value": IDENTITY,
    "logit": Codec(torch.logit, torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x)),
    "doubled": Codec(
        lambda beta: torch.logit(beta / 2),
        lambda x: 2 * torch.sigmoid(x),
        lambda x: 2 * torch.sigmoid(x) * torch.sigmoid(-x),
    ),
}
"""Of beta: value, logit (0 and 1 are -inf and inf, where the slope is 0), doubled (the logit of
half of it)."""
LARGEST: Final = {"logit": 1.0, "doubled": 2.0}
"""What the beta that a sigmoid makes is at most."""
