"""Backwards that break one rule of calls each, of the embedded kernel with its own forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_calls import DTYPES, LONG, counted, held_before
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

Derivation = Callable[[Inputs, Cotangents, dict[Any, Any]], Gradients[Any]]


def derived_right(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    return EAGER.gradients(x, given)


class Derived(Adapter):
    """The embedded kernel with a backward that is patched."""

    name = "derived"
    dtypes = DTYPES

    def __init__(self, patch: Derivation = derived_right) -> None:
        self._patch, self._kept = patch, dict[Any, Any]()

    def contract(self, dtype: str) -> Any:
        return EAGER.contract(dtype)

    def forward(self, inputs: Inputs) -> Output:
        return EAGER.forward(inputs)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        return self._patch(inputs, cotangents, self._kept)

    def proof(self) -> str:
        return "derived"


def derived_wrong_at_times(x: Inputs, given: Cotangents, kept: dict[Any, Any]) -> Gradients[Any]:
    found = EAGER.gradients(x, given)
    return replace(found, dk=found.dk * 2) if counted(kept) == 3 else found


def derived_in_one_buffer(x: Inputs, given: Cotangents, kept: dict[Any, Any]) -> Gradients[Any]:
    found = EAGER.gradients(x, given)
    return replace(found, dv=kept.setdefault(x.T, torch.empty_like(found.dv)).copy_(found.dv))


def derived_from(change: Callable[[Tensor], Tensor]) -> Derivation:
    """A backward that reads another incoming gradient of o, where there is one."""

    def derive(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
        do = given.do if given.do is None else change(given.do)
        return EAGER.gradients(x, replace(given, do=do))

    return derive


def cotangent_as_if_dense(do: Tensor) -> Tensor:
    """The rows that a dense tensor would have at its address."""
    return do.as_strided(do.shape, torch.empty(do.shape, device="meta").stride()).nan_to_num(0.0)


def cotangent_from_the_start(do: Tensor) -> Tensor:
    """The rows at the beginning of its memory."""
    memory = torch.empty(0, dtype=do.dtype).set_(do.untyped_storage())
    return memory[: do.numel()].view(do.shape).nan_to_num(0.0)


def cotangent_of_its_memory(do: Tensor) -> Tensor:
    """A copy of its memory, filled up with zeros where that is smaller."""
    memory = torch.empty(0, dtype=do.dtype).set_(do.untyped_storage())
    if memory.numel() >= do.numel():
        return do
    return torch.cat([memory, memory.new_zeros(do.numel() - memory.numel())]).view(do.shape)


def derived_from_dense_inputs(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Takes k by its address and its shape alone, in the backward."""
    k = x.k.as_strided(x.k.shape, torch.empty(x.k.shape, device="meta").stride())
    return EAGER.gradients(replace(x, k=k.nan_to_num(0.0)), given)


def derived_from_the_start_of_inputs(
    x: Inputs, given: Cotangents, _: dict[Any, Any]
) -> Gradients[Any]:
    """Takes v from the beginning of its memory, in the backward."""
    v = torch.empty(0, dtype=x.v.dtype).set_(x.v.untyped_storage())[: x.v.numel()].view(x.v.shape)
    return EAGER.gradients(replace(x, v=v.nan_to_num(0.0)), given)


def derived_masked_by_products(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Sums do over all tokens, those past the last offset times 0."""
    found = EAGER.gradients(x, given)
    assert given.do is not None
    used = (torch.arange(x.T) < sum(x.lengths)).to(given.do.dtype)[:, None, None]
    return replace(found, dv=found.dv + 0 * (given.do * used).sum(dim=1, keepdim=True))


def derived_without_writing(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    found = EAGER.gradients(x, given)
    dq = torch.empty_like(found.dq)
    dq[:, 1:] = found.dq[:, 1:]
    return replace(found, dq=dq)


def derived_when_long(patch: Derivation) -> Derivation:
    """The same of a backward."""
    return lambda x, given, kept: (patch if x.T >= LONG else derived_right)(x, given, kept)


def derived_added_to_unwritten(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    found = EAGER.gradients(x, given)
    return replace(found, dq=found.dq + 0 * held_before(found.dq))
