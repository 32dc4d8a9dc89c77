"""The pipeline a contract names, under any rounding."""

from __future__ import annotations

import torch

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.parts import Outputs
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Stages, chunk
from oracles.inputs import Inputs
from oracles.recurrence import recurrence


def run_form(
    contract: Contract,
    inputs: Inputs,
    *,
    dtype: torch.dtype,
    arithmetic: Arithmetic,
    stages: Stages = STAGES,
) -> Outputs:
    """o and S_T of the contract's form, recurrent or chunk, computed in `dtype`.

    Args:
        contract: only its form and chunk size are read; the roundings are those of `arithmetic`.
        stages: of the chunk form.
    """
    if contract.form == "recurrent":
        return recurrence(inputs, dtype=dtype, arithmetic=arithmetic)
    return chunk(
        inputs, chunk_size=contract.chunk_size, dtype=dtype, arithmetic=arithmetic, stages=stages
    )
