"""One tensor in several places of a call: its gradient is the sum of those of all places.

Attention with a latent cache gets one tensor as k and as v; grouped heads and shared prefixes are
views of stride 0. Autograd sums what the kernel returns for each. A kernel that reads such a tensor
once may return the sum once; one that returned it for every place was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.checks.calls.autograd import (
    RecordedCall,
    gradients_of_call,
    recorded_outputs,
    unconverted,
)
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import watched
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from oracles.autograd import gradients_of, leaf
from oracles.signature import TensorCall

Place = Callable[[Tensor], Tensor]
"""Makes an input from a source."""


def as_it_is(source: Tensor) -> Tensor:
    return source


@dataclass(frozen=True)
class Source:
    """A tensor, and what it becomes in each of the inputs that are made from it."""

    tensor: Tensor
    places: Mapping[str, Place]


def _shared(case: CallRuleCase) -> list[Outcome]:
    """Pairs of inputs of equal shapes, one tensor."""
    found = list[Outcome]()
    for names, here in case.alike():
        x, kept = here.inputs, [name for name in unconverted(here) if name in names]
        for a, b in combinations(sorted(kept), 2):
            if _form(x, a) != _form(x, b):
                continue
            source = Source(getattr(x, a), {a: as_it_is, b: as_it_is})
            found += _summed(here, [source], f"where {a} and {b} are one tensor")
    if not found:
        raise Unreachable("no two inputs of it can be one tensor")
    return found


def _form(inputs: TensorCall, name: str) -> tuple[Any, ...]:
    tensor = getattr(inputs, name)
    return tensor.shape, tensor.dtype


def _expanded(case: CallRuleCase) -> list[Outcome]:
    """Inputs of one entry, or one head, expanded over the others by a stride of 0."""
    found = list[Outcome]()
    for said, axis, names in _axes(case):
        sources = [_along(getattr(case.inputs, name), name, axis) for name in names]
        found += _summed(case, sources, f"where {' and '.join(names)} are of one {said}, expanded")
    if not found:
        raise Unreachable("none of its inputs has two heads or entries")
    return found


def _axes(case: CallRuleCase) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    kept = unconverted(case)
    for said, axis, names in case.adapter.operator.expanded_axes():
        if {*names} <= {*kept} and all(getattr(case.inputs, x).shape[axis] > 1 for x in names):
            yield said, axis, names


def _along(tensor: Tensor, name: str, axis: int) -> Source:
    return Source(tensor.narrow(axis, 0, 1).clone(), {name: lambda x: x.expand_as(tensor)})


def _summed(case: CallRuleCase, sources: list[Source], said: str) -> list[Outcome]:
    names = [name for source in sources for name in source.places]
    dense = {
        name: place(source.tensor).contiguous().clone()
        for source in sources
        for name, place in source.places.items()
    }
    # a dataclass each
    there: Any = replace(case.inputs, **dense)  # pyright: ignore[reportArgumentType]
    apart = _recorded(case, there, {name: leaf(x) for name, x in dense.items()})
    parts = gradients_of_call(case, apart)
    gradients = {name: dx for dx, name in there.signature.gradients.items() if name in names}
    found = list[Outcome]()
    for source, total in zip(sources, _totals(case, there, sources), strict=True):
        places = {gradients[name]: place for name, place in source.places.items()}
        pulled = _PulledBack(replace(source, places=places), parts, said)
        found.append(pulled.judged(case, there, total))
    return found


def _totals(case: CallRuleCase, inputs: Any, sources: list[Source]) -> list[Tensor]:
    # where the kernel takes it as it is: copies to another device would be one an input
    leaves = [leaf(source.tensor.to(case.place).clone()) for source in sources]
    made = {
        name: place(x)
        for x, source in zip(leaves, sources, strict=True)
        for name, place in source.places.items()
    }
    with torch.inference_mode(mode=False), torch.enable_grad():
        there = inputs.on(case.place)
        call = _recorded(case, there, made, {str(n): x for n, x in enumerate(leaves)})
    given = {
        case.inputs.signature.cotangents[name]: dy for name, dy in case.loss_on(case.place).items()
    }
    found = watched(lambda: call.gradients(given), "call")
    return [found[str(n)].to(case.inputs.device) for n in range(len(leaves))]


def _recorded(
    case: CallRuleCase, inputs: Any, made: Tensors, leaves: Tensors | None = None
) -> RecordedCall:
    given: Any = replace(inputs.copied(), **made)
    return RecordedCall(recorded_outputs(case, given), made if leaves is None else leaves)


@dataclass(frozen=True)
class _PulledBack:
    """A source, its places by the names of their gradients, and those gradients of tensors apart.

    Math: rms(a + b) <= rms(a) + rms(b), and a sum over n entries of one place has n times the rms
    error at most; terms and sum are rounded once more.
    """

    source: Source
    parts: Tensors
    said: str

    def judged(self, case: CallRuleCase, inputs: Any, total: Tensor) -> Outcome:
        """The same sum as of tensors apart, but for its roundings; or an rms error within the sum
        of those of all.
        """
        name, wanted = "+".join(self.source.places), self._sum(self.parts).double()
        adapter, io = case.adapter, FORMATS[case.problem.dtype]
        # Of gradients apart, which `gradients` judges; it takes no exact values.
        terms = sum(self._rms(self.parts[dx]) for dx in self.source.places)
        rounded = io.unit * (rms(wanted) + terms)
        if rms(total.double() - wanted) <= rounded:
            return Outcome(name, Status.PASS, f"{name}: the same sum {self.said}")
        contract = adapter.backward_contract(case.problem.dtype)
        received = adapter.received(inputs)
        held = adapter.operator.gradient_reference(received, case.cotangents, contract, io)
        values = {dx: held.exact(dx).high for dx in self.source.places}
        exact = self._sum(values)
        allowed = io.unit * rms(exact)
        for dx, value in values.items():
            allowed += self._count(value) * held.budgets[dx].allowed.rms
            allowed += io.unit * self._rms(value)
        error = rms(total.double() - exact)
        status = Status.PASS if error <= allowed else Status.FAIL
        message = (
            f"{name}: {self.said} the gradient has rms error {error:.3g}, tolerance {allowed:.3g},"
            f" rms {rms(exact):.3g} of the exact sum: return the gradient of each input, or their"
            " sum once"
        )
        return Outcome(name, status, message)

    def _count(self, gradient: Tensor) -> float:
        return gradient.numel() / self.source.tensor.numel()

    def _rms(self, gradient: Tensor) -> float:
        """Of the sum of the entries of a place, at most."""
        return self._count(gradient) * rms(gradient.double())

    def _sum(self, gradients: Mapping[str, Tensor]) -> Tensor:
        places, tensor = self.source.places, self.source.tensor
        return torch.stack([_pulled(at, tensor, gradients[dx]) for dx, at in places.items()]).sum(0)


def _pulled(place: Place, source: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a source from that of a place."""
    like = source.detach().to(gradient.dtype).requires_grad_()
    with torch.inference_mode(mode=False), torch.enable_grad():
        made = {"place": place(like)}
        return gradients_of(made, {"source": like}, {"place": gradient.contiguous()})["source"]


_rule = partial(
    CallRule, packed=False, sources=True, spare=False, inside=True, backward=True, costly=True
)
RULES: Final = (
    _rule("one-tensor", "a tensor that is passed as two inputs has the sum of their gradients",
          "one buffer for the gradients of k and v where they are one tensor, returned for both",
          _shared),
    _rule("one-expanded", "a tensor that is expanded over heads or entries has the sum of the"
          " gradients of all",
          "heads of stride 0 read as one, whose summed gradient is returned for every head",
          _expanded),
)  # fmt: skip
