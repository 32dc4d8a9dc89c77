"""Release v26.9.1: the middle revision for K = V = 64 and K = V = 128 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.adapters.ascend.standins.behaviour import Behaviour
from tests.adapters.ascend.standins.mid import chunk_operator, recurrent_operator

BEHAVIOUR = Behaviour(square=True)


def operators(does: Behaviour) -> dict[str, Callable[..., Any]]:
    """The functions of the module, with the given behaviour."""
    return {"chunk_kda_fwd": chunk_operator(does), "recurrent_kda": recurrent_operator(does)}


chunk_kda_fwd, recurrent_kda = operators(BEHAVIOUR).values()
