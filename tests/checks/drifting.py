"""Kernels that lose a little at every token, chunk, resume or step, and their right twin; run by
nobody but the tests of drift.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs
from tests.faults.kernels import port, run, staged


def low(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def state_rounded(c: Chunk) -> None:
    STAGES.state(c)
    c.S = low(c.S)


def _decay_in_bf16(c: Chunk) -> None:
    before, decay = c.S, c.decay(slice(-1, None)).transpose(-1, -2)
    STAGES.state(c)
    c.S = c.S + before * (low(decay) - decay)


def _resumed_from_bf16(inputs: Inputs) -> tuple[Tensor, Tensor]:
    state = inputs.initial_state
    return run(inputs if state is None else replace(inputs, initial_state=low(state)), "bf16")


state_in_bf16 = staged("state_in_bf16", "bf16", state=state_rounded)
decay_in_bf16 = staged("decay_in_bf16", "bf16", state=_decay_in_bf16)
resumed_from_bf16 = port("resumed_from_bf16", "bf16", _resumed_from_bf16)
right = staged("right_at_length", "bf16")


class Member(Adapter):
    """An emulated conforming kernel as an implementation.

    Args:
        gate: factor of the gates of single steps; 1 is right.
    """

    def __init__(self, member: Emulator, dtype: str, *, gate: float = 1.0) -> None:
        self.name, self.dtypes, self._member, self._gate = (
            f"emulated {member.name}",
            (dtype,),
            member,
            gate,
        )

    def contract(self, dtype: str) -> Contract:
        del dtype
        return self._member.contract

    def forward(self, inputs: Inputs) -> Output:
        o, final = self._member.run(inputs)
        return Output(o.to(inputs.q.dtype), final.to(self._member.contract.carry.dtype))

    def step(self, inputs: Inputs) -> Output:
        return self.forward(replace(inputs, g=inputs.g * self._gate))

    def proof(self) -> str:
        return self.name


def stepping(*, gate: float) -> Member:
    """A right chunk kernel whose decode step multiplies every gate by `gate`."""
    return Member(
        Emulator("plain", contract_from_name("chunk64-bf16"), FORMATS["bf16"]), "bf16", gate=gate
    )
