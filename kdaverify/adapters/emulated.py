"""Designs that exist on paper, emulated as if every core did what the design says."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Output, WatchedAdapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import clear_padding
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.designs import design
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.problems import Domain
from oracles.chunk import chunk
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs


class Emulated(WatchedAdapter):
    """A design in torch: mailboxes in its formats, sums and exponentials in fp32 (or fp64)."""

    dtypes = ("fp64", "fp32", "bf16", "fp16")

    def __init__(self, name: str) -> None:
        self.name = f"emulated:{name}"
        self._design = design(name)
        # a design that decays along the value axis needs K = V
        self.domain = Domain(square=self._design.square, gates=self._design.gates)
        self.conventions = Conventions(gates=self._design.gates)

    def contract(self, dtype: str) -> Contract:
        return self._design.contract(FORMATS[dtype])

    # The design's backward is `gradients`. Torch's autograd of this forward is another function:
    # where all channels of a token share a gate, the state kernel reads the first channel's, and
    # autograd would charge that channel with the derivatives of all.
    @torch.no_grad()
    def forward(self, inputs: Inputs) -> Output:
        emulator = self._emulator(inputs)
        size, work = emulator.contract.chunk_size, emulator.contract.work
        o, final = chunk(
            inputs,
            chunk_size=size,
            dtype=work,
            arithmetic=emulator.arithmetic,
            stages=emulator.stages,
        )
        # A pack without tokens passes the initial state through: a copy, never the caller's tensor.
        return Output(o.to(inputs.q.dtype), final.to(emulator.contract.carry.dtype, copy=True))

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Tensor]:
        emulator = self._emulator(inputs)
        do = cotangents.do
        found = chunk_backward(
            inputs,
            # Of rows that no sequence holds the caller may hand over anything.
            replace(cotangents, do=None if do is None else clear_padding(do, inputs)),
            chunk_size=emulator.contract.chunk_size,
            dtype=emulator.contract.work,
            arithmetic=emulator.arithmetic,
            stages=emulator.stages,
            backward=emulator.backward,
        )
        returned = {
            name: getattr(found, name).to(inputs.q.dtype) for name in ("dq", "dk", "dv", "dbeta")
        }
        return Gradients(**returned, dg=found.dg, d_initial_state=found.d_initial_state)

    def _emulator(self, inputs: Inputs) -> Emulator:
        emulator = self._design.emulator(format_of(inputs.q.dtype))
        self._ran = f"{self._design.name} in torch, emulated"
        return emulator


ASCEND_V1, ASCEND_V2, ASCEND_V3 = (
    Emulated(name) for name in ("ascend_v1", "ascend_v2", "ascend_v3")
)
TRITON_NPU_STATE: Final = Emulated("triton_npu_state")
TRITON_NPU_GDN: Final = Emulated("triton_npu_gdn")
