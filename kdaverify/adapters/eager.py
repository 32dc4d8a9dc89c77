"""The embedded default: KDA in plain torch, which conforms to its contract by construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Output, WatchedAdapter
from kdaverify.adapters.conventions import CANONICAL
from kdaverify.adapters.stages import StageCall, torch_backward_stages, torch_stages
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.declared import declared_contracts
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.scalar_decay import FORWARD as OF_ONE_GATE
from kdaverify.operators.pointwise.call import ActivationCall, torch_activations
from kdaverify.problems import DTYPES, TORCH, Domain
from kdaverify.problems.axes import Gates
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Stages
from oracles.inputs import Inputs


def arithmetic_of(contract: Contract) -> Arithmetic:
    """Stored tensors in the contract's formats; o is rounded once, on return."""

    def store(name: str, tensor: Tensor) -> Tensor:
        return tensor if name == "o" else contract.stored(name, tensor, contract.operands)

    return Arithmetic(store=store, sub_block=contract.sub_block)


def stages_of(contract: Contract) -> Stages:
    """The right stages of a kernel's chunks."""
    return OF_ONE_GATE if contract.decay == "scalar" else STAGES


def run_eager(
    contract: Contract, inputs: Inputs, *, arithmetic: Arithmetic, stages: Stages | None = None
) -> tuple[Tensor, Tensor]:
    """o and S_T in the types a kernel returns them in; without `stages`, by the right ones."""
    table = stages_of(contract) if stages is None else stages
    o, final_state = run_form(
        contract, inputs, dtype=contract.work, arithmetic=arithmetic, stages=table
    )
    # A pack without tokens passes the initial state through: a copy, never the caller's tensor.
    return o.to(inputs.q.dtype), final_state.to(contract.carry.dtype, copy=True)


class Eager(WatchedAdapter):
    """Torch executing math.md 3 or 2: tensors in the contract's formats, sums and exps in fp32."""

    def __init__(self, name: str, presets: Mapping[str, str], gates: Gates = "channel") -> None:
        self.name = name
        self.conventions, self.domain = replace(CANONICAL, gates=gates), Domain(gates=gates)
        self.dtypes = tuple(presets)
        self._contracts = declared_contracts(presets, self.dtypes)

    def begin(self, case: str) -> None:
        # What ran in an earlier case is no evidence for this one.
        self._ran = NOTHING_YET

    def contract(self, dtype: str) -> Contract:
        return self._contracts[dtype]

    def forward(self, inputs: Inputs) -> Output:
        contract = next(
            self._contracts[dtype] for dtype in self.dtypes if TORCH[dtype] == inputs.q.dtype
        )
        o, final_state = run_eager(contract, inputs, arithmetic=arithmetic_of(contract))
        self._ran = f"oracles in torch as {contract.name}"
        return Output(o, final_state)

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        contract = self._contracts[dtype]
        if contract.form == "recurrent" or contract.decay == "scalar":
            return {}
        return {
            **torch_stages(contract, FORMATS[dtype]),
            **torch_backward_stages(contract, FORMATS[dtype]),
        }

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        return torch_activations()


EAGER: Final = Eager("eager", dict.fromkeys(DTYPES, "eager"))
EAGER_RECURRENT: Final = Eager("eager-recurrent", dict.fromkeys(DTYPES, "eager-recurrent"))
