"""The pipeline a contract names, there and back, under any rounding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.parts import Outputs
from oracles.adjoint import adjoint
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Stages, chunk
from oracles.chunk_backward import BACKWARD, BackwardStages, chunk_backward
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.recurrence import recurrence


class Way(NamedTuple):
    """How a kernel computes: the type, the roundings, the stages there and back."""

    dtype: torch.dtype
    arithmetic: Arithmetic
    stages: Stages
    backward: BackwardStages = BACKWARD


def run_form(
    contract: Contract,
    inputs: Inputs,
    *,
    dtype: torch.dtype,
    arithmetic: Arithmetic,
    stages: Stages = STAGES,
) -> Outputs:
    """o and S_T of the contract's form, recurrent or chunk, computed in `dtype`.

    The S_T of an empty sequence is S_0 in the format of states: where that is narrow, it rounds. A
    right kernel was rejected there for a median of 1.33 times its tolerance, in 25 of 25 seeds.

    Args:
        contract: its form, chunk size and state formats are read; `arithmetic` rounds.
        stages: of the chunk form.
    """
    if contract.form == "recurrent":
        o, final = recurrence(inputs, dtype=dtype, arithmetic=arithmetic)
    else:
        size = contract.chunk_size
        o, final = chunk(inputs, chunk_size=size, dtype=dtype, arithmetic=arithmetic, stages=stages)
    narrow = contract.carry.unit > contract.accumulate.unit
    return o, arithmetic.store("S", final) if narrow and not all(inputs.lengths) else final


def run_backward(
    contract: Contract, inputs: Inputs, cotangents: Cotangents, way: Way
) -> Gradients[Tensor]:
    """Gradients by the contract's form: the recurrence's adjoint, or the chunk backward."""
    if contract.form == "recurrent":
        return adjoint(inputs, cotangents, dtype=way.dtype, arithmetic=way.arithmetic)
    return chunk_backward(
        inputs,
        cotangents,
        chunk_size=contract.chunk_size,
        dtype=way.dtype,
        arithmetic=way.arithmetic,
        stages=way.stages,
        backward=way.backward,
    )
