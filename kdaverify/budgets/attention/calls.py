"""The tolerances of a call of queries over keys, from its exact values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.attention.reference import (
    Loss,
    attention_gradient_reference,
    attention_reference,
)
from kdaverify.budgets.bounded import METHOD
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from oracles.attention.calls import RequestsCall
from oracles.enclosure import Enclosure

Exact = Mapping[str, Enclosure]
PRESETS: Final = (
    "online64-{io}", "math-fp32", "math-{io}", "online-fp32", "seesaw-{io}",
    "online64-{io}[lazy:8]", "online64-{io}[row_sum:free]",
    "online64-{io}[row_sum:free;partial_o:inputs]", "online64-{io}[product:{io};PV:{io}]",
)  # fmt: skip
"""The contracts of mla.md 2.2 by rule, the default first; {io} stands for the format of q."""


def attention_contracts(io: Format) -> dict[str, AttentionContract]:
    """The contracts that a declaration can name; any other is `attention_contract(...)`."""
    names = dict.fromkeys(name.format(io=io.name) for name in PRESETS)
    return {name: attention_contract(name, io) for name in names}


def call_reference(call: RequestsCall, exact: Exact, contract: AttentionContract) -> Reference:
    """The reference of the outputs.

    Args:
        exact: o and lse as the call returns them, lse 0 in rows without keys.
    """

    def layout(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        o, lse = ([part[n] for part in parts] for n in range(2))
        finite = [x.masked_fill(torch.isneginf(x), 0.0) for x in lse]
        return {"o": call.joined("o", o), "lse": call.joined("lse", finite)}

    segments = as_read(call, contract).stacked()
    return attention_reference(segments, exact, layout, contract, method=METHOD)


def as_read(call: RequestsCall, contract: StorageContract) -> RequestsCall:
    """The call with keys as a kernel has them that dequantises a cache for its products."""
    return call.as_read(contract.operands.round, contract.storage("K_scale").round)


def call_gradient_reference(
    call: RequestsCall, cotangents: Mapping[str, Tensor], exact: Exact, contract: AttentionContract
) -> Reference:
    """The reference of the gradients.

    Args:
        cotangents: do, dlse; either may be absent.
        exact: by the names of the call's signature.
    """
    losses = [Loss(*pair) for pair in call.stacked_losses(cotangents)]
    declared = contract if "dk" in exact else contract.of_shared_keys()

    def layout(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        return call.joined_gradients(parts)

    return attention_gradient_reference(
        call.stacked(), losses, exact, layout, declared, method=METHOD
    )
