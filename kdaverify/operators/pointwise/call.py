"""The operations beside the kernel that an implementation exposes: gates, beta, l2norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from oracles.autograd import gradients_of
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named

BesideOne = Literal["kept", "rounded"]
OPTIONAL: Final = "dt_bias"
"""The tensor that a call may be without."""


class ActivationError(ValueError):
    """An operation that was declared wrongly; the message has what was wanted and what came."""


@dataclass(frozen=True)
class ActivationArguments:
    """What an operation is called with; indexing gives a tensor, None for an absent dt_bias.

    Args:
        tensors: z [B, T, HV, K], A_log [HV] and dt_bias [HV, K] of gates; logits [B, T, HV] of
            beta; x [B, T, H, K] of l2norm.
        setting: the lower bound of gate_bounded (negative), the factor of beta_sigmoid (1 or 2),
            the eps of l2norm (inside the root).
        cotangent: of the result, for the backward; fp32, of l2norm in the type of x.
    """

    tensors: Named
    setting: float = 0.0
    cotangent: Tensor | None = None

    def __getitem__(self, name: str) -> Tensor | None:
        if name not in self.tensors and name != OPTIONAL:
            raise KeyError(f"no tensor is called {name!r} here, only {', '.join(self.tensors)}")
        return self.tensors.get(name)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> ActivationArguments:
        """The same call with every tensor changed."""
        tensors = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(
            self,
            tensors=tensors,
            cotangent=None if self.cotangent is None else change(self.cotangent),
        )


@dataclass(frozen=True)
class ActivationCall:
    """One operation of an implementation, computed in fp32 and rounded once, into what it returns.

    Math: 6; results g and beta are fp32, y has the type of x; every gradient has the type of the
    tensor it belongs to.

    Args:
        forward: gives g, beta or y.
        backward: gives dz, dA_log [HV] and, beside a dt_bias, ddt_bias [HV, K]; or dlogits; or dx.
            None: there is none.
        beside_one: "kept": softplus keeps what is small beside 1 (log1p), and so does the slope s
            (1 - s) of a sigmoid s. "rounded": log(1 + exp(x)) and 1 - s, where it is rounded away.
            That has to be declared: see `budgets.activations`.
        parameters: the types of A_log and dt_bias it takes.
        dense: whether its callers hand it dense tensors alone: no others are tested. Of FLA's
            functions those that models call make their tensors contiguous, and these are inside.
    """

    forward: Callable[[ActivationArguments], Tensor]
    backward: Callable[[ActivationArguments], Named] | None = None
    beside_one: BesideOne = "kept"
    parameters: tuple[str, ...] = ("fp32", "bf16")
    dense: bool = False


def differentiated(
    op: str, forward: Callable[[ActivationArguments], Tensor]
) -> Callable[[ActivationArguments], dict[str, Tensor]]:
    """The backward that torch's autograd makes of `forward`."""

    def backward(x: ActivationArguments) -> dict[str, Tensor]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in x.tensors.items()}
        with torch.enable_grad():
            result = forward(replace(x, tensors=leaves))
        assert x.cotangent is not None  # every backward has one
        found = gradients_of({"result": result}, leaves, {"result": x.cotangent})
        return {
            gradient: found[source]
            for gradient, source in OPERATIONS[op].gradients.items()
            if source in found
        }

    return backward


def _biased(x: ActivationArguments) -> tuple[Tensor, Tensor]:
    z, rate = x.tensors["z"].float(), x.tensors["A_log"].float().exp()[:, None]
    return (z if x["dt_bias"] is None else z + x.tensors["dt_bias"].float()), rate


def _softplus_gate(x: ActivationArguments) -> Tensor:
    z, rate = _biased(x)
    return -rate * softplus(z)


def _bounded_gate(x: ActivationArguments) -> Tensor:
    z, rate = _biased(x)
    return x.setting * torch.sigmoid(rate * z)


def _beta(x: ActivationArguments) -> Tensor:
    return x.setting * torch.sigmoid(x.tensors["logits"].float())


def _normalised(x: ActivationArguments) -> tuple[Tensor, Tensor]:
    wide = x.tensors["x"].float()
    inverse = torch.rsqrt(wide.square().sum(-1, keepdim=True) + x.setting)
    return wide * inverse, inverse


def _l2norm(x: ActivationArguments) -> Tensor:
    return _normalised(x)[0].to(x.tensors["x"].dtype)


def _l2norm_backward(x: ActivationArguments) -> dict[str, Tensor]:
    # Not autograd's, whose cube of the inverse norm vanishes for rows past 2^42.
    assert x.cotangent is not None
    (y, inverse), dy = _normalised(x), x.cotangent.float()
    return {"dx": (inverse * (dy - y * (y * dy).sum(-1, keepdim=True))).to(x.tensors["x"].dtype)}


def torch_activations() -> dict[str, ActivationCall]:
    """The four operations in torch: fp32 inside. Torch's softplus keeps what is small beside 1, its
    sigmoid's derivative does not.
    """
    return {
        "gate_softplus": ActivationCall(
            _softplus_gate, differentiated("gate_softplus", _softplus_gate)
        ),
        "gate_bounded": ActivationCall(
            _bounded_gate, differentiated("gate_bounded", _bounded_gate), beside_one="rounded"
        ),
        "beta_sigmoid": ActivationCall(
            _beta, differentiated("beta_sigmoid", _beta), beside_one="rounded"
        ),
        "l2norm": ActivationCall(_l2norm, _l2norm_backward),
    }


def checked(activations: Mapping[str, ActivationCall]) -> Mapping[str, ActivationCall]:
    """The operations of an implementation.

    Raises:
        ActivationError: a name that is no operation, or something that is no ActivationCall.
    """
    for name, call in activations.items():
        if name not in OPERATIONS:
            raise ActivationError(
                f"activations: wanted some of {', '.join(OPERATIONS)}, got {name!r}"
            )
        # users write it
        if not isinstance(call, ActivationCall):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ActivationError(
                f"activations: {name}: wanted kdaverify.ActivationCall(forward, backward), got"
                f" {type(call).__name__}"
            )
    return activations
