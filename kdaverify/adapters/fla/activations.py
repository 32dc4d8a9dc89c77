"""Functions of flash-linear-attention beside the kernel, by name, and ports of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall
from oracles.stages import Named

Function = Callable[..., Any]
Find = Callable[[str, str], Function | None]
"""(name, module of FLA) -> the function of that name, None where it is not held."""


@dataclass(frozen=True)
class ActivationFunctions:
    """FLA's functions for one operation.

    Args:
        there, back: their names.
        module: of FLA, that holds them.
        forward: (there, arguments) -> the result.
        backward: (there, back, arguments) -> the gradients.
    """

    there: str
    back: str
    module: str
    forward: Callable[[Function, ActivationArguments], Tensor]
    backward: Callable[[Function, Function, ActivationArguments], Named]


def _gate(x: ActivationArguments, *, bounded: bool) -> dict[str, Any]:
    bias = x["dt_bias"]
    flat = None if bias is None else bias.flatten()
    return {
        "g": x.tensors["z"],
        "A_log": x.tensors["A_log"],
        "dt_bias": flat,
        "lower_bound": x.setting if bounded else None,
    }


def _gate_forward(*, bounded: bool) -> Callable[[Function, ActivationArguments], Tensor]:
    return lambda there, x: there(**_gate(x, bounded=bounded), output_dtype=torch.float32)


def _gate_backward(*, bounded: bool) -> Callable[[Function, Function, ActivationArguments], Named]:
    def backward(_: Function, back: Function, x: ActivationArguments) -> Named:
        dz, dA_log, ddt_bias = back(**_gate(x, bounded=bounded), dyg=x.cotangent)
        bias = x["dt_bias"]
        return {"dz": dz, "dA_log": dA_log} | (
            {} if bias is None else {"ddt_bias": ddt_bias.view(bias.shape)}
        )

    return backward


def _l2norm_backward(there: Function, back: Function, x: ActivationArguments) -> Named:
    y, rstd = there(x.tensors["x"], eps=x.setting)
    return {"dx": back(y=y, rstd=rstd, dy=x.cotangent, eps=x.setting)}


def _gate_functions(*, bounded: bool) -> ActivationFunctions:
    forward, backward = _gate_forward(bounded=bounded), _gate_backward(bounded=bounded)
    return ActivationFunctions(
        "kda_gate_fwd", "kda_gate_bwd", "fla.ops.kda.gate", forward, backward
    )


FUNCTIONS: Final[Mapping[str, ActivationFunctions]] = {
    "gate_softplus": _gate_functions(bounded=False),
    "gate_bounded": _gate_functions(bounded=True),
    "beta_sigmoid": ActivationFunctions(
        "fused_beta_sigmoid_fwd",
        "fused_beta_sigmoid_bwd",
        "fla.ops.common.gate",
        lambda there, x: there(x.tensors["logits"], scale=x.setting),
        lambda _, back, x: {"dlogits": back(x.tensors["logits"], dy=x.cotangent, scale=x.setting)},
    ),
    "l2norm": ActivationFunctions(
        "l2norm_fwd",
        "l2norm_bwd",
        "fla.modules.norm.l2norm",
        lambda there, x: there(x.tensors["x"], eps=x.setting)[0],
        _l2norm_backward,
    ),
}
"""FLA's functions by operation. They round beside 1: softplus is log(1 + exp(x)) below 20, slopes
are s (1 - s)."""


def _of_fla(name: str, module: str) -> Function | None:
    return getattr(importlib.import_module(module), name)


def fla_activation(op: str, find: Find = _of_fla, *, backward: bool = True) -> ActivationCall:
    """One operation through functions under FLA's names.

    Args:
        op: a key of FUNCTIONS.
        find: brings them, called each time, so that they may be imported late.
        backward: whether there is one.
    """
    known = FUNCTIONS[op]

    def function(name: str) -> Function:
        found = find(name, known.module)
        if found is None:
            raise AdapterError(
                f"{op}: no function {name}; wanted FLA's functions under FLA's names"
            )
        return found

    return ActivationCall(
        lambda x: known.forward(function(known.there), x),
        (
            (lambda x: known.backward(function(known.there), function(known.back), x))
            if backward
            else None
        ),
        beside_one="rounded",
        dense=True,
    )


def port_activations(module: str) -> dict[str, ActivationCall]:
    """A port's operations: those that `module` has under FLA's name, with their backwards.

    Raises:
        AdapterError: the module cannot be imported.
    """
    try:
        held = importlib.import_module(module)
    except ImportError as error:
        raise AdapterError(
            f"{module}: cannot be imported: {error}; name a module that holds functions under FLA's"
            " names"
        ) from error

    def find(name: str, _: str) -> Function | None:
        found = getattr(held, name, None)
        return found if callable(found) else None

    there = {op: known for op, known in FUNCTIONS.items() if find(known.there, known.module)}
    return {
        op: fla_activation(op, find, backward=find(known.back, known.module) is not None)
        for op, known in there.items()
    }
