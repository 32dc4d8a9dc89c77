"""The recurrence that reads the state before its decay, as one gate for all channels allows.

Math: S' = alpha (S - beta k (S^T k)^T) + beta k v^T. Autograd of it rounds alpha dS' before the two
terms of the erased row cancel, others after. Where keys come back with betas near 1 that row hangs
on few roundings: opengdn's plain loop was rejected for a row of dbeta at 2.8 times its tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kdaverify.budgets.emulate import Emulator, scaled_queries
from kdaverify.budgets.parts import Outputs
from oracles.arithmetic import Arithmetic
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.tokens import Tokens

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class ReadBeforeDecay(Emulator):
    """A reference kernel whose tokens are of this form."""

    def _run(self, inputs: Inputs) -> Outputs:
        inputs = scaled_queries(self.computed(inputs), self.contract, self.io.round)
        o, final = _recurrence(inputs, self.contract.work, self.arithmetic)
        return o.double(), final.double()


def read_before_decay(plain: Emulator, inputs: Inputs) -> list[Emulator]:
    """That of a recurrence whose channels decay alike; else none."""
    if plain.contract.form != "recurrent" or not bool((inputs.g == inputs.g[..., :1]).all()):
        return []
    own = {field.name: getattr(plain, field.name) for field in fields(plain)}
    own["name"] = "state read before its decay"
    return [ReadBeforeDecay(**own)]


def _recurrence(
    inputs: Inputs, dtype: torch.dtype, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    def step(carry: State, x: Tokens) -> tuple[State, State]:
        decay, column = arithmetic.exp(x.g).transpose(-1, -2), x.k.transpose(-1, -2)
        p = arithmetic.store("p", arithmetic.dot(x.k, carry[0]))
        erased = carry[0] - column * (x.beta[..., None] * p)
        decayed = arithmetic.store("decayed", decay * erased)
        after = arithmetic.store("S", decayed + column * (x.beta[..., None] * x.v))
        return (after,), (arithmetic.store("o", inputs.factor * arithmetic.dot(x.q, after)),)

    if not any(inputs.lengths):
        return torch.zeros_like(inputs.v, dtype=dtype), inputs.state.to(dtype)
    (final,), (o,) = scan(inputs, 1, (inputs.state.to(dtype),), step, dtype=dtype)
    return o, final
