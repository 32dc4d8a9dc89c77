"""Kernels that live on another device: the way there and back, nothing lost on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import TENSORS


def on_device(device: str, call: Callable[[Inputs], Output], inputs: Inputs) -> Output:
    """`call` on a copy of the inputs on `device`; the outputs come back to where the inputs lie.

    An input that the kernel edited there is edited in `inputs` too, and an output in the memory of
    an input becomes that input of the
    caller: here the harness looks for both.
    """
    home = inputs.q.device
    if home.type == device:
        return call(inputs)
    there = inputs.on(device)
    kept = there.copied()
    output = call(there)
    _show_edits(inputs, there, kept)
    return Output(
        _home(output.o, inputs, there, home), _home(output.final_state, inputs, there, home)
    )


def gradients_on_device(
    device: str,
    call: Callable[[Inputs, Cotangents], Gradients[Any]],
    inputs: Inputs,
    cotangents: Cotangents,
) -> Gradients[Any]:
    """The same for a backward: gradients come back to where the inputs lie."""
    home = inputs.q.device
    if home.type == device:
        return call(inputs, cotangents)
    there = inputs.on(device)
    kept = there.copied()
    found = call(there, cotangents.on(device))
    _show_edits(inputs, there, kept)
    return Gradients(
        **{
            name: dx.to(home) if isinstance(dx, Tensor) else dx
            for name, dx in found.named().items()
        }
    )


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
def _show_edits(inputs: Inputs, there: Inputs, kept: Inputs) -> None:
    for name in TENSORS:
        after, before = getattr(there, name), getattr(kept, name)
        if before is not None and not torch.equal(after, before):
            getattr(inputs, name).copy_(after)


def _home(value: Any, inputs: Inputs, there: Inputs, home: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    for name in TENSORS:
        source = getattr(there, name)
        if source is not None and shares_memory(value, source) and value.shape == source.shape:
            return getattr(inputs, name)
    return value.to(home)


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one allocation."""
    return a.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def runs_elsewhere(adapter: Adapter, device: str) -> str | None:
    """A sentence where `adapter` runs on another device than requested;
    None where it runs there.
    """
    runs_on = adapter.environment()["device"]
    # By type, as torch says (cuda), or by name (NVIDIA H200).
    if any(name.lower().startswith(device.lower()) for name in (adapter.device, runs_on)):
        return None
    return (
        f"--device: {adapter.name} runs on {runs_on}, not on {device}; leave the option out or name"
        " another implementation"
    )
