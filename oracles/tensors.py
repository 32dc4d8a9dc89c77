"""The tensors of a delta-rule call, each with its role (math.md 1 and 2)."""

from __future__ import annotations

from typing import Final

from oracles.signature import CallSignature, Role, TensorRole


def _axes(letters: str) -> tuple[str, ...]:
    return tuple(letters.split())


SIGNATURE: Final = CallSignature(
    inputs=(
        TensorRole("q", Role.TOKEN, _axes("B T H K"), "dq"),
        TensorRole("k", Role.TOKEN, _axes("B T H K"), "dk"),
        TensorRole("v", Role.TOKEN, _axes("B T HV V"), "dv"),
        TensorRole("g", Role.TOKEN, _axes("B T HV KG"), "dg"),
        TensorRole("beta", Role.TOKEN, _axes("B T HV"), "dbeta"),
        TensorRole(
            "initial_state", Role.STATE, _axes("N HV K V"), "d_initial_state", optional=True
        ),
        TensorRole("cu_seqlens", Role.OFFSETS, _axes("N+1"), optional=True),
        TensorRole("sequence_ids", Role.INDEX, _axes("N"), optional=True),
    ),
    outputs=(
        TensorRole("o", Role.TOKEN, _axes("B T HV V"), "do"),
        TensorRole("final_state", Role.STATE, _axes("N HV K V"), "d_final_state"),
    ),
)

TENSORS: Final = SIGNATURE.names()
TOKENS: Final = SIGNATURE.names(Role.TOKEN)
FLOATING: Final = SIGNATURE.names(Role.TOKEN, Role.STATE)
OUTPUTS: Final = SIGNATURE.returned
GRADIENTS: Final = SIGNATURE.gradients
COTANGENTS: Final = tuple(SIGNATURE.cotangents)
