"""Every way of the triangular solve as an implementation under test, each in formats of its own;
the other stages are eager's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter, Output
from kdaverify.adapters.stages import StageCall, torch_stages
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.solves import SOLVES
from kdaverify.budgets.stages import solving
from kdaverify.problems import TORCH
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Stages
from oracles.inputs import Inputs
from oracles.stages import run_stages


class Solving(Adapter):
    """KDA in chunks whose triangular solve goes one way.

    Args:
        way: a key of SOLVES.
        matrix: the format in which its products take their operands; sums are fp32.
        contract: what is declared; its operands are the format of the problems.
    """

    def __init__(self, way: str, matrix: str, contract: str) -> None:
        self.name = f"solve by {way}, products in {matrix}"
        self._contract = contract_from_name(contract)
        self.dtypes = (self._contract.operands.name,)
        self._way, self._matrix = SOLVES[way], FORMATS[matrix]
        self._ran = NOTHING_YET

    def contract(self, dtype: str) -> Contract:
        del dtype
        return self._contract

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        return torch_stages(
            self._contract, FORMATS[dtype], functools.partial(run_stages, stages=self._table)
        )

    def forward(self, inputs: Inputs) -> Output:
        io = FORMATS[next(dtype for dtype in self.dtypes if TORCH[dtype] == inputs.q.dtype)]
        arithmetic = Arithmetic(store=lambda name, tensor: self._contract.stored(name, tensor, io))
        o, final_state = run_form(
            self._contract,
            inputs,
            dtype=self._contract.work,
            arithmetic=arithmetic,
            stages=self._table,
        )
        self._ran = f"torch, {self.name}"
        return Output(o.to(inputs.q.dtype), final_state.to(self._contract.carry.dtype, copy=True))

    def proof(self) -> str:
        return self._ran

    @property
    def _table(self) -> Stages:
        return replace(STAGES, solve=solving(self._way, self._dot))

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(self._matrix.round(a), self._matrix.round(b))
