"""Kernels that live on another device: the way there and back, nothing lost on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, values_of
from kdaverify.operator import call_operator
from oracles.signature import TensorCall

C = TypeVar("C", bound=TensorCall)
Values = TypeVar("Values")


def on_device(device: str, call: Callable[[C], Values], inputs: C) -> Values:
    """`call` on a copy of the inputs on `device`; the outputs come back to where the inputs lie.

    An input that the kernel edited there is edited in `inputs` too, and an output in the memory of
    an input becomes that input of the caller: here the harness looks for both.
    """
    if inputs.device.type == device:
        return call(inputs)
    there = inputs.on(device)
    kept = there.copied()
    found = values_of(call(there))
    _show_edits(inputs, there, kept)
    return call_operator(inputs.op).returned(
        {name: _home(value, inputs, there) for name, value in found.items()}
    )


def gradients_on_device(
    device: str, call: Callable[[C, Any], Values], inputs: C, cotangents: Any
) -> Values:
    """The same for a backward: gradients come back to where the inputs lie."""
    if inputs.device.type == device:
        return call(inputs, cotangents)
    operator, there = call_operator(inputs.op), inputs.on(device)
    kept = there.copied()
    given = {name: _on(dy, device) for name, dy in values_of(cotangents).items()}
    found = values_of(call(there, operator.cotangents(given)))
    _show_edits(inputs, there, kept)
    return operator.returned({name: _on(dx, inputs.device) for name, dx in found.items()})


def _on(value: Any, device: torch.device | str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def lacks_device(device: str) -> str | None:
    """Why nothing can run on a torch device of that type here; None if something can."""
    if device == "cpu":
        return None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        return f"no device {device!r} here: {str(error).partition(chr(10))[0]}"
    return None


@torch.no_grad()
def _show_edits(inputs: TensorCall, there: TensorCall, kept: TensorCall) -> None:
    """Edits in the caller's tensors what the kernel edited in its own; NaN is equal to NaN."""
    for name, before in kept.tensors().items():
        after = getattr(there, name)
        if not torch.equal(after.nan_to_num(), before.nan_to_num()):
            getattr(inputs, name).copy_(after)


def _home(value: Any, inputs: TensorCall, there: TensorCall) -> Any:
    """An output where the inputs lie; one in the memory of an input is that input of the caller."""
    if not isinstance(value, Tensor):
        return value
    for name, source in there.tensors().items():
        if shares_memory(value, source) and value.shape == source.shape:
            return getattr(inputs, name)
    return value.to(inputs.device)


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one allocation."""
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def runs_elsewhere(adapter: Adapter, device: str) -> str | None:
    """A sentence where `adapter` runs on another device than requested; else None."""
    runs_on = adapter.environment()["device"]
    # By type, as torch says (cuda), or by name (NVIDIA H200).
    if any(name.lower().startswith(device.lower()) for name in (adapter.device, runs_on)):
        return None
    return (
        f"--device: {adapter.name} runs on {runs_on}, not on {device}; leave the option out or name"
        " another implementation"
    )
