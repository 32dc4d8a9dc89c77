"""What a vendor's function takes, read off without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# The public functions of fla_npu may be wrappers of (*args, **kwargs); the functions behind them
# are named npu_*.
BEHIND: Final = ("_aclnn_ctypes", "_stable")


@dataclass(frozen=True)
class Entry:
    """A vendor's function.

    Args:
        call: the public function.
        parameters: names of what it takes, in order.
        place: where it and its signature were found, for people.
    """

    call: Callable[..., Any]
    parameters: tuple[str, ...]
    place: str


def entry(module: Any, name: str) -> Entry | None:
    """The public function `name` of a module with its real parameters; None if there is none."""
    call = getattr(module, name, None)
    if call is None:
        return None
    place = f"{module.__name__}.{name}"
    shown = parameters(call)
    if "q" in shown:
        return Entry(call, shown, place)
    for hidden in BEHIND:
        behind = getattr(getattr(module, hidden, None), f"npu_{name}", None)
        if behind is not None and "q" in parameters(behind):
            return Entry(call, parameters(behind), f"{place} (signature of {hidden}.npu_{name})")
    return Entry(call, shown, place)


def parameters(function: Any) -> tuple[str, ...]:
    """Parameter names of a Python or torch.ops function; none where no signature is shown."""
    overload = getattr(function, "default", function)
    schema = getattr(overload, "_schema", None)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments)
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
