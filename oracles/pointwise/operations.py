"""Operations beside the kernel by name: arguments, results, and both exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from oracles.pointwise.activation import (
    beta_gate,
    beta_gate_vjp,
    l2norm,
    l2norm_vjp,
    lower_bound_gate,
    lower_bound_gate_vjp,
    softplus_gate,
    softplus_gate_vjp,
)
from oracles.stages import Named


@dataclass(frozen=True)
class Operation:
    """One operation, exactly; everything in float64.

    Args:
        about: one line for people.
        takes: names of the tensors it takes; dt_bias may be absent.
        result: name of the tensor it returns.
        gradients: name of a gradient -> the tensor it belongs to.
        forward: (tensors, setting) -> the result.
        vjp: (tensors, cotangent of the result, setting) -> the gradients by name.
    """

    about: str
    takes: tuple[str, ...]
    result: str
    gradients: Mapping[str, str]
    forward: Callable[[Named, float], Tensor]
    vjp: Callable[[Named, Tensor, float], dict[str, Tensor]]


def _bounded(x: Named, lower_bound: float) -> Tensor:
    return lower_bound_gate(x["z"], x["A_log"], x.get("dt_bias"), lower_bound=lower_bound)


def _bounded_vjp(x: Named, dg: Tensor, lower_bound: float) -> dict[str, Tensor]:
    return vars(
        lower_bound_gate_vjp(x["z"], x["A_log"], x.get("dt_bias"), dg, lower_bound=lower_bound)
    )


_GATE_TAKES: Final = ("z", "A_log", "dt_bias")
_GATE_GRADIENTS: Final = {"dz": "z", "dA_log": "A_log", "ddt_bias": "dt_bias"}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "gate_softplus": Operation(
        "the gate g = -exp(A_log) softplus(z + dt_bias) [B, T, HV, K]",
        _GATE_TAKES,
        "g",
        _GATE_GRADIENTS,
        lambda x, _: softplus_gate(x["z"], x["A_log"], x.get("dt_bias")),
        lambda x, dg, _: vars(softplus_gate_vjp(x["z"], x["A_log"], x.get("dt_bias"), dg)),
    ),
    "gate_bounded": Operation(
        "the gate g = lower_bound sigmoid(exp(A_log) (z + dt_bias)) [B, T, HV, K]",
        _GATE_TAKES,
        "g",
        _GATE_GRADIENTS,
        _bounded,
        _bounded_vjp,
    ),
    "beta_sigmoid": Operation(
        "beta = sigmoid(logits), or twice that [B, T, HV]",
        ("logits",),
        "beta",
        {"dlogits": "logits"},
        lambda x, factor: factor * beta_gate(x["logits"]),
        lambda x, dbeta, factor: {"dlogits": factor * beta_gate_vjp(x["logits"], dbeta)},
    ),
    "l2norm": Operation(
        "y = x / sqrt(sum x^2 + eps) of rows of q and k [B, T, H, K]",
        ("x",),
        "y",
        {"dx": "x"},
        lambda x, eps: l2norm(x["x"], eps=eps),
        lambda x, dy, eps: {"dx": l2norm_vjp(x["x"], dy, eps=eps)},
    ),
}
"""Their settings: gate_bounded takes its lower bound, beta_sigmoid its factor (1 or 2), l2norm its
eps; gate_softplus none."""
