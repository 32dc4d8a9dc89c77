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


def _softplus(x: Named, _: float) -> Tensor:
    return softplus_gate(x["z"], x["A_log"], x.get("dt_bias"))


def _softplus_vjp(x: Named, dg: Tensor, _: float) -> dict[str, Tensor]:
    return vars(softplus_gate_vjp(x["z"], x["A_log"], x.get("dt_bias"), dg))


def _bounded(x: Named, lower_bound: float) -> Tensor:
    return lower_bound_gate(x["z"], x["A_log"], x.get("dt_bias"), lower_bound=lower_bound)


def _bounded_vjp(x: Named, dg: Tensor, lower_bound: float) -> dict[str, Tensor]:
    return vars(
        lower_bound_gate_vjp(x["z"], x["A_log"], x.get("dt_bias"), dg, lower_bound=lower_bound)
    )


def _beta(x: Named, factor: float) -> Tensor:
    return factor * beta_gate(x["logits"])


def _beta_vjp(x: Named, dbeta: Tensor, factor: float) -> dict[str, Tensor]:
    return {"dlogits": factor * beta_gate_vjp(x["logits"], dbeta)}


def _l2norm(x: Named, eps: float) -> Tensor:
    return l2norm(x["x"], eps=eps)


def _l2norm_vjp(x: Named, dy: Tensor, eps: float) -> dict[str, Tensor]:
    return {"dx": l2norm_vjp(x["x"], dy, eps=eps)}


_GATE_TAKES: Final = ("z", "A_log", "dt_bias")
_GATE_GRADIENTS: Final = {"dz": "z", "dA_log": "A_log", "ddt_bias": "dt_bias"}

OPERATIONS: Final[Mapping[str, Operation]] = {
    "gate_softplus": Operation(
        "the gate g = -exp(A_log) softplus(z + dt_bias) [B, T, HV, K]",
        _GATE_TAKES,
        "g",
        _GATE_GRADIENTS,
        _softplus,
        _softplus_vjp,
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
        _beta,
        _beta_vjp,
    ),
    "l2norm": Operation(
        "y = x / sqrt(sum x^2 + eps) of rows of q and k [B, T, H, K]",
        ("x",),
        "y",
        {"dx": "x"},
        _l2norm,
        _l2norm_vjp,
    ),
}
"""Their settings: gate_bounded takes its lower bound, beta_sigmoid its factor (1 or 2), l2norm its
eps; gate_softplus none."""
