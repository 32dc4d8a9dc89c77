"""Faults of the operations beside the kernel, each in the way it is known to occur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    differentiated,
    torch_activations,
)
from tests.operators.pointwise.activated import Activated, Grads, biased, changed


def forward(op: str, function: Callable[[ActivationArguments], Tensor]) -> Activated:
    """Another forward, and the right gradients."""
    return Activated(function.__name__, **{op: replace(torch_activations()[op], forward=function)})


def through_autograd(op: str, function: Callable[[ActivationArguments], Tensor]) -> Activated:
    """Another forward, and the gradients that autograd makes of it."""
    call = replace(torch_activations()[op], forward=function, backward=differentiated(op, function))
    return Activated(function.__name__, **{op: call})


def unguarded_softplus(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return -rate * torch.log1p(torch.exp(z))


def threshold_of_2(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return -rate * softplus(z, threshold=2)


def gate_in_bf16(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return (-rate.bfloat16() * softplus(z.bfloat16())).float()


def log_of_sum_undeclared(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return -rate * torch.where(z < 20, torch.log(1 + torch.exp(z.clamp(max=20))), z)


def wrong_head(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return -rate.roll(1, 0) * softplus(z)


def slope_overflows(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    z, rate = biased(x)
    assert x.cotangent is not None
    return right | {
        "dz": (-rate * torch.exp(z) / (1 + torch.exp(z)) * x.cotangent).to(right["dz"].dtype)
    }


def terms_in_bf16(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    z, rate = biased(x)
    assert x.cotangent is not None
    terms = (-rate * softplus(z) * x.cotangent).bfloat16().float()
    return right | {"dA_log": terms.sum((0, 1, 3)).to(right["dA_log"].dtype)}


def sum_in_bf16(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    z, rate = biased(x)
    assert x.cotangent is not None
    total = torch.zeros(z.shape[2], dtype=torch.bfloat16)
    for tokens in (-rate * softplus(z) * x.cotangent).flatten(0, 1):
        total = total + tokens.sum(-1).bfloat16()
    return right | {"dA_log": total.to(right["dA_log"].dtype)}


def _bias_of(terms: Tensor, right: dict[str, Tensor]) -> Grads:
    return right | {"ddt_bias": terms.to(right["ddt_bias"].dtype)} if "ddt_bias" in right else right


def bias_of_the_first_entry(_: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    return _bias_of(right["dz"][0].float().sum(0), right)


def bias_over_heads(_: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    terms = right["dz"].float().sum((0, 1, 2))
    return _bias_of(terms.expand(right["dz"].shape[2:]).contiguous(), right)


def rate_left_out_of_dz(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    _, rate = biased(x)
    return right | {"dz": (right["dz"].float() / rate).to(right["dz"].dtype)}


def sigmoid_of_exp(x: ActivationArguments) -> Tensor:
    t = torch.exp(x.tensors["logits"].float())
    return x.setting * (t / (1 + t))


def beta_in_bf16(x: ActivationArguments) -> Tensor:
    return (x.setting * torch.sigmoid(x.tensors["logits"].float())).bfloat16().float()


def factor_left_out(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    return {"dlogits": right["dlogits"] / (2 * x.setting)}


def norm(x: ActivationArguments) -> tuple[Tensor, Tensor]:
    wide = x.tensors["x"].float()
    return wide, torch.rsqrt(wide.square().sum(-1, keepdim=True) + x.setting)


def eps_outside_the_root(x: ActivationArguments) -> Tensor:
    wide = x.tensors["x"].float()
    return (wide / (wide.square().sum(-1, keepdim=True).sqrt() + x.setting)).to(
        x.tensors["x"].dtype
    )


def without_eps(x: ActivationArguments) -> Tensor:
    wide = x.tensors["x"].float()
    return (wide / wide.norm(dim=-1, keepdim=True)).to(x.tensors["x"].dtype)


def squares_in_their_own_type(x: ActivationArguments) -> Tensor:
    own = x.tensors["x"]
    return own * torch.rsqrt(own.square().sum(-1, keepdim=True) + x.setting)


def without_projection(x: ActivationArguments, right: dict[str, Tensor]) -> Grads:
    assert x.cotangent is not None
    return {"dx": (norm(x)[1] * x.cotangent.float()).to(right["dx"].dtype)}


def norm_through_autograd(x: ActivationArguments) -> Tensor:
    """Right, but its derivative has the cube of the inverse norm, which vanishes for large rows."""
    wide, inverse = norm(x)
    return (wide * inverse).to(x.tensors["x"].dtype)


FAULTS: dict[str, tuple[Activated, str, str]] = {
    fault.name.replace("_", " "): (fault, op, output)
    for op, output, fault in (
        ("gate_softplus", "g", forward("gate_softplus", unguarded_softplus)),
        ("gate_softplus", "g", forward("gate_softplus", threshold_of_2)),
        ("gate_softplus", "g", forward("gate_softplus", gate_in_bf16)),
        ("gate_softplus", "g", forward("gate_softplus", log_of_sum_undeclared)),
        ("gate_softplus", "g", forward("gate_softplus", wrong_head)),
        ("gate_softplus", "dz", changed("gate_softplus", slope_overflows)),
        ("gate_softplus", "dA_log", changed("gate_softplus", terms_in_bf16)),
        ("gate_softplus", "dA_log", changed("gate_softplus", sum_in_bf16)),
        ("gate_softplus", "ddt_bias", changed("gate_softplus", bias_of_the_first_entry)),
        ("gate_bounded", "ddt_bias", changed("gate_bounded", bias_over_heads)),
        ("gate_bounded", "dz", changed("gate_bounded", rate_left_out_of_dz)),
        ("beta_sigmoid", "beta", forward("beta_sigmoid", sigmoid_of_exp)),
        ("beta_sigmoid", "beta", forward("beta_sigmoid", beta_in_bf16)),
        ("beta_sigmoid", "dlogits", changed("beta_sigmoid", factor_left_out)),
        ("l2norm", "y", forward("l2norm", eps_outside_the_root)),
        ("l2norm", "y", forward("l2norm", without_eps)),
        ("l2norm", "y", forward("l2norm", squares_in_their_own_type)),
        ("l2norm", "dx", changed("l2norm", without_projection)),
        ("l2norm", "dx", through_autograd("l2norm", norm_through_autograd)),
    )
}
"""Fault -> who has it, the operation, the result that shows it."""
