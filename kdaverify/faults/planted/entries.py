"""Recurrences with activating or normalising entry points, and one thing forgotten.

The plain call of each is right: only a call through the entry shows the fault, as in serving code,
where nothing else is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from torch import Tensor
from torch.nn.functional import normalize, softplus

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.eager import Eager
from kdaverify.adapters.raw_gate import RawGate
from kdaverify.budgets.contract import Contract
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.row_norm import EPSILON, GIVEN

LOG_16: Final = math.log(16)
SOFTPLUS: Final = RawGate("softplus")


@dataclass(frozen=True)
class PlantedEntry:
    """What a kernel does itself before its recurrence, in fp32.

    Args:
        gate: (raw gate, A_log, dt_bias) -> g; None where it takes g.
        beta: logits -> beta; None where it takes beta.
        norm: rows of q or k -> unit rows; None where it takes them so.
    """

    gate: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    beta: Callable[[Tensor], Tensor] | None = None
    norm: Callable[[Tensor], Tensor] | None = None


def activated(x: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """Math: g = -exp(A_log) softplus(x + dt_bias)."""
    return -A_log.exp()[:, None] * softplus(x + dt_bias, threshold=30.0)


def normalised(x: Tensor) -> Tensor:
    """Math: x / sqrt(|x|^2 + eps)."""
    return x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()


RIGHT: Final[Mapping[str, PlantedEntry]] = {
    "softplus-in-kernel": PlantedEntry(gate=activated),
    "sigmoid-in-kernel": PlantedEntry(beta=lambda x: x.sigmoid()),
    "doubled-sigmoid-in-kernel": PlantedEntry(beta=lambda x: 2 * x.sigmoid()),
    "l2norm-in-kernel": PlantedEntry(norm=normalised),
}
DOUBLED: Final = "doubled-sigmoid-in-kernel"


class EntryRecurrence(Eager):
    """A recurrence in fp32, for inference, with the entry points of RIGHT.

    Args:
        changed: entries that are wrong, by name.
        entry: the one that is called; None for the plain call.
    """

    def __init__(self, changed: Mapping[str, PlantedEntry], entry: str | None = None) -> None:
        super().__init__("recurrence", {"fp32": "recurrent-fp32"})
        self.differentiable = False
        self._changed, self._name = changed, entry
        self._does = PlantedEntry() if entry is None else {**RIGHT, **changed}[entry]
        self.conventions = Conventions(
            beta="value" if self._does.beta is None else "logit",
            qk=GIVEN if self._does.norm is None else "l2norm",
        )

    def variants(self) -> Mapping[str, Adapter]:
        return self._variants

    @cached_property
    def _variants(self) -> Mapping[str, Adapter]:
        return {} if self._name else {name: EntryRecurrence(self._changed, name) for name in RIGHT}

    def contract(self, dtype: str) -> Contract:
        return replace(
            super().contract(dtype),
            softplus=self._does.gate is not None,
            qk=self.conventions.rows_form,
        )

    def supports(self, problem: Problem) -> str | None:
        return next(self._limits(problem), None)

    def _limits(self, problem: Problem) -> Iterator[str]:
        if self._does.gate is not None and (refusal := SOFTPLUS.refuses(problem)):
            yield refusal
        if (
            self._does.beta is not None
            and self._name != DOUBLED
            and bool((problem.inputs().beta > 1).any())
        ):
            yield "no beta above 1 (a sigmoid)"

    def received(self, inputs: Inputs) -> Inputs:
        if self._does.gate is not None:
            inputs = SOFTPLUS.received(inputs)
        halved = self.conventions.received(replace(inputs, beta=inputs.beta / self._factor))
        return replace(halved, beta=self._factor * halved.beta)

    def forward(self, inputs: Inputs) -> Output:
        does, q, k, g = self._does, inputs.q, inputs.k, inputs.g
        beta = self.conventions.hand("beta", inputs.beta / self._factor, inputs)
        if does.gate is not None:
            g = does.gate(SOFTPLUS.raw(inputs), *SOFTPLUS.parameters(inputs))
        if does.beta is not None:
            beta = does.beta(beta)
        if does.norm is not None:
            q, k = (
                does.norm(self.conventions.hand(name, x, inputs))
                for name, x in (("q", q), ("k", k))
            )
        return super().forward(replace(inputs, q=q, k=k, g=g, beta=beta))

    @property
    def _factor(self) -> float:
        return 2.0 if self._name == DOUBLED else 1.0


def _wrong(entry: str, does: PlantedEntry) -> Callable[[], Adapter]:
    return partial(EntryRecurrence, {entry: does})


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a raw gate without its bias": _wrong(
        "softplus-in-kernel", PlantedEntry(gate=lambda x, A_log, _: activated(x, A_log, 0 * x))
    ),
    "a raw gate without its amplitude": _wrong(
        "softplus-in-kernel",
        PlantedEntry(gate=lambda x, _, b: activated(x, x.new_zeros(x.shape[2]), b)),
    ),
    "the softplus of a raw gate is linear from 1": _wrong(
        "softplus-in-kernel",
        PlantedEntry(
            gate=lambda x, A_log, b: -A_log.exp()[:, None] * softplus(x + b, threshold=1.0)
        ),
    ),
    "logits of beta are taken for beta": _wrong(
        "sigmoid-in-kernel", PlantedEntry(beta=lambda x: x)
    ),
    "a doubled sigmoid is not doubled": _wrong(DOUBLED, PlantedEntry(beta=lambda x: x.sigmoid())),
    "rows are normalised by their largest element": _wrong(
        "l2norm-in-kernel", PlantedEntry(norm=lambda x: normalize(x, p=float("inf"), dim=-1))
    ),
    "the softplus of a raw gate is linear from 8": _wrong(
        "softplus-in-kernel",
        PlantedEntry(
            gate=lambda x, A_log, b: -A_log.exp()[:, None] * softplus(x + b, threshold=8.0)
        ),
    ),
    "the amplitude of a raw gate is at most 16": _wrong(
        "softplus-in-kernel",
        PlantedEntry(gate=lambda x, A, b: activated(x, A.clamp(max=LOG_16), b)),
    ),
}


def right() -> Adapter:
    """The recurrence with every entry right."""
    return EntryRecurrence({})
