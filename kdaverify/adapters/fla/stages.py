"""Calling flash-linear-attention's stage functions, and those of ports with their names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.fla.functions import ALL_FUNCTIONS, LOG2_E, Setting, StageFunction, always
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.budgets.stage_forms import HEAD
from oracles.stages import Named, chunks

Function = Callable[..., Any]
# Kept in fp32 by FLA whatever the format of the call.
_IN_FP32: Final = ("dAqk", "dAkk")
_OF_GATES: Final = ("g", "G", "dG", "dG_part", "dG_wy", "dg")
"""Without an axis of channels where there is one gate a head."""


def _chunk_indices(x: StageArguments) -> Tensor | None:
    """[M, 2] sequence and number within it of every chunk of a pack."""
    if x.inputs.cu_seqlens is None:
        return None
    pairs = [(n, m) for n, count in enumerate(chunks(x.inputs, x.chunk_size)) for m in range(count)]
    return x.inputs.cu_seqlens.new_tensor(pairs).view(-1, 2)


def _chunk_offsets(x: StageArguments) -> Tensor | None:
    """[N + 1] first chunk of every sequence of a pack."""
    if x.inputs.cu_seqlens is None:
        return None
    return x.inputs.cu_seqlens.new_tensor([0, *chunks(x.inputs, x.chunk_size)]).cumsum(0)


# What any of the functions may be handed beside its tensors and settings; those with a default keep
# it if `_KEPT`.
COMMON: Final[Mapping[str, Setting]] = {
    "scale": lambda x: x.inputs.factor,
    "chunk_size": lambda x: x.chunk_size,
    "cu_seqlens": lambda x: x.inputs.cu_seqlens,
    "cu_seqlens_cpu": lambda x: None if x.inputs.cu_seqlens is None else x.inputs.cu_seqlens.cpu(),
    "chunk_indices": _chunk_indices,
    "chunk_offsets": _chunk_offsets,
    "state_v_first": always(value=False),
}
_KEPT: Final = ("cu_seqlens_cpu", "chunk_indices", "chunk_offsets", "state_v_first")


def stage_call(
    known: StageFunction,
    function: Callable[[], Function],
    *,
    base_2: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> StageCall:
    """One of FLA's stages as the harness calls it.

    Args:
        known: what FLA's function of that name takes and gives.
        function: brings the function, called each time, so that it may be imported late.
        base_2: whether gates are summed in base 2.
        extra: further arguments, for the parameters that the function has.
    """

    def call(x: StageArguments) -> Named:
        there = function()
        tensors = {parameter: x[tensor] for parameter, tensor in known.tensors.items()}
        handed = {
            parameter: _handed(known, known.tensors[parameter], tensor, base_2=base_2)
            for parameter, tensor in tensors.items()
        }
        settings = {
            **COMMON,
            **known.settings,
            **{parameter: always(value) for parameter, value in (extra or {}).items()},
        }
        if known.covers == ("cumsum",) and not base_2:
            settings["scale"] = always(None)
        returned = there(**handed, **_settings(known, there, settings, x))
        return _returned(known, returned, x.inputs.K, base_2=base_2)

    return StageCall(
        known.covers,
        tuple(known.tensors.values()),
        known.gives,
        call,
        received=_through_base_2 if base_2 else StageCall.received,
        form=known.form,
    )


def _settings(
    known: StageFunction, function: Function, settings: Mapping[str, Setting], x: StageArguments
) -> dict[str, Any]:
    """The arguments beside tensors, for the parameters that the function has.

    Raises:
        AdapterError: it lacks a parameter for a tensor or for what matters to this call, or wants
            one that FLA does not have.
    """
    parameters = inspect.signature(function).parameters
    named = {
        name: p
        for name, p in parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    wanted = [*known.tensors, *(["cu_seqlens"] if x.inputs.cu_seqlens is not None else [])]
    if lacking := [name for name in wanted if name not in named and not takes_any]:
        raise AdapterError(
            f"{known.name}: has no parameter {', '.join(lacking)}; FLA's are {_spelled(known)};"
            " rename or wrap it"
        )
    required = [
        name for name, p in named.items() if p.default is p.empty and name not in known.tensors
    ]
    if strange := [name for name in required if name not in settings]:
        raise AdapterError(
            f"{known.name}: wants {', '.join(strange)}, which FLA's has not ({_spelled(known)});"
            " give it a default"
        )
    kept = [name for name in _KEPT if name not in required]
    return {
        name: settings[name](x)
        for name in named
        if name in settings and name not in known.tensors and name not in kept
    }


def _spelled(known: StageFunction) -> str:
    return ", ".join(dict.fromkeys([*known.tensors, *known.settings, *COMMON]))


def _handed(
    known: StageFunction, name: str, tensor: Tensor | None, *, base_2: bool
) -> Tensor | None:
    if tensor is None or name in _IN_FP32:
        return None if tensor is None else tensor.float()
    found = _to_base_2(tensor) if name == "G" and base_2 else tensor
    return found[..., 0].contiguous() if known.form is HEAD and name in _OF_GATES else found


def _returned(known: StageFunction, returned: Any, K: int, *, base_2: bool) -> dict[str, Tensor]:
    values = returned if isinstance(returned, tuple | list) else (returned,)
    if len(values) < len(known.gives):
        raise AdapterError(
            f"{known.name}: wanted {', '.join(known.gives)} in this order, got {len(values)}"
            " values; return what FLA's returns"
        )
    named = dict(zip(known.gives, values, strict=False))
    if base_2 and isinstance(named.get("G"), Tensor):
        named["G"] = named["G"].double() / LOG2_E
    if known.form is HEAD:
        named |= {n: named[n][..., None] for n in named.keys() & {*_OF_GATES}}
        # The oracle has the sums of every channel.
        named |= {n: named[n].expand(*named[n].shape[:-1], K) for n in named.keys() & {"G"}}
    return named


def _to_base_2(G: Tensor) -> Tensor:
    return (G.double() * LOG2_E).float()


def _through_base_2(name: str, tensor: Tensor) -> Tensor:
    return _to_base_2(tensor).double() / LOG2_E if name == "G" else tensor


def imported(known: StageFunction, module: str | None = None) -> Function:
    """The function out of FLA, or out of the module that a user named.

    Raises:
        AdapterError: no such module or function.
    """
    home = module or known.module
    try:
        found = getattr(importlib.import_module(home), known.name, None)
    except ImportError as error:
        raise AdapterError(
            f"{home}: cannot be imported: {error}; name a module that holds {known.name}"
        ) from error
    if not callable(found):
        raise AdapterError(
            f"{home}: holds no function {known.name}; wanted FLA's stage functions under FLA's"
            " names"
        )
    return found


def port_stages(
    module: str,
    *,
    base_2: bool = True,
    alone: bool = True,
    known: Mapping[str, StageFunction] = ALL_FUNCTIONS,
) -> dict[str, StageCall]:
    """The stages of a port: those of FLA's functions that `module` holds.

    Args:
        alone: whether there is nothing else to judge the port on.
        known: what FLA's functions take and give, by stage.
    Raises:
        AdapterError: the module cannot be imported, or holds none of them and nothing else.
    """
    try:
        held = importlib.import_module(module)
    except ImportError as error:
        raise AdapterError(
            f"{module}: cannot be imported: {error}; name a module that holds FLA's stage functions"
        ) from error
    functions = {name: _held(held, function) for name, function in known.items()}
    present = {name: function for name, function in functions.items() if function is not None}
    if not present and alone:
        names = ", ".join(dict.fromkeys(function.name for function in known.values()))
        raise AdapterError(f"{module}: holds none of FLA's stage functions ({names})")
    return {
        name: stage_call(known[name], _always_function(function), base_2=base_2)
        for name, function in present.items()
    }


def _held(module: ModuleType, known: StageFunction) -> Function | None:
    """The function of a port; None where the module has none, or one for something else."""
    function = getattr(module, known.name, None)
    if not callable(function) or not all(
        name in inspect.signature(function).parameters for name in known.needs
    ):
        return None
    return function


def _always_function(function: Function) -> Callable[[], Function]:
    return lambda: function
