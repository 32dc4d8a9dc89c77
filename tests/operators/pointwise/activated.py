"""Operations beside the kernel as implementations under test: conforming in other ways than
eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.adapters.eager import Eager
from kdaverify.budgets.accelerator import exp_approximate
from kdaverify.budgets.formats import truncate_fp32
from kdaverify.operators.pointwise.call import (
    ActivationArguments,
    ActivationCall,
    torch_activations,
)

Grads = Mapping[str, Tensor]
Change = Callable[[ActivationArguments, dict[str, Tensor]], Grads]
SMALLEST = 2.0**-126
LN2 = 0.6931471805599453


class Activated(Eager):
    """Eager with some operations replaced."""

    def __init__(self, name: str, **replaced: ActivationCall) -> None:
        super().__init__(name, {dtype: f"chunk64-{dtype}" for dtype in ("fp32", "bf16", "fp16")})
        self._replaced = replaced

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        return {**super().activations(dtype), **self._replaced}


def changed(op: str, change: Change) -> Activated:
    """Gradients that are right but for a change."""
    call = torch_activations()[op]
    assert call.backward is not None
    right = call.backward

    def backward(x: ActivationArguments) -> Grads:
        return change(x, dict(right(x)))

    return Activated(change.__name__, **{op: replace(call, backward=backward)})


def biased(x: ActivationArguments) -> tuple[Tensor, Tensor]:
    z, rate = x.tensors["z"].float(), x.tensors["A_log"].float().exp()[:, None]
    return (z if x["dt_bias"] is None else z + x.tensors["dt_bias"].float()), rate


def flushed(x: Tensor) -> Tensor:
    return x.masked_fill(x.abs() < SMALLEST, 0.0)


def unit(x: Tensor) -> Tensor:
    """What a unit gives that leaves the last bit out and flushes."""
    return flushed(truncate_fp32(x, bits=1))


def exp_unit(x: Tensor) -> Tensor:
    return flushed(exp_approximate(x))


def sigmoid_unit(x: Tensor) -> Tensor:
    return unit(1 / (1 + exp_unit(-x)))


def softplus_unit(x: Tensor) -> Tensor:
    return torch.where(x < 20, unit(torch.log2(1 + exp_unit(x))) * LN2, x)


def in_blocks(terms: Tensor) -> Tensor:
    """[B, T, ...] summed over B and T: one token after the other in blocks of 32,
    then one block after the other.
    """
    rows = terms.flatten(0, 1)
    blocks = [part.cumsum(0)[-1] for part in rows.split(32)]
    return torch.stack(blocks).cumsum(0)[-1]


def naive_gate(*, bounded: bool) -> ActivationCall:
    """As accelerators do it: exponentials of base 2, 1 + exp(x),
    s (1 - s), subnormals flushed, sums in blocks.
    """

    def there(x: ActivationArguments) -> Tensor:
        z, _ = biased(x)
        rate = exp_unit(x.tensors["A_log"].float())[:, None]
        return flushed(x.setting * sigmoid_unit(rate * z) if bounded else -rate * softplus_unit(z))

    def back(x: ActivationArguments) -> Grads:
        assert x.cotangent is not None
        z, _ = biased(x)
        rate, dg = exp_unit(x.tensors["A_log"].float())[:, None], x.cotangent
        s = sigmoid_unit(rate * z if bounded else z)
        dz = flushed(dg * (x.setting * (s * (1 - s))) * rate if bounded else -rate * (dg * s))
        dA = in_blocks(flushed(dz * z if bounded else dg * there(x))).cumsum(-1)[..., -1]
        found = {"dz": dz.to(x.tensors["z"].dtype), "dA_log": dA.to(x.tensors["A_log"].dtype)}
        return (
            found
            if x["dt_bias"] is None
            else {**found, "ddt_bias": in_blocks(dz).to(x.tensors["dt_bias"].dtype)}
        )

    return ActivationCall(there, back, beside_one="rounded")


def beta_on_accelerators(x: ActivationArguments) -> Tensor:
    return x.setting * sigmoid_unit(x.tensors["logits"].float())


def beta_back_on_accelerators(x: ActivationArguments) -> Grads:
    assert x.cotangent is not None
    s = sigmoid_unit(x.tensors["logits"].float())
    return {"dlogits": flushed(x.cotangent * x.setting * s * (1 - s)).to(x.tensors["logits"].dtype)}


def norm_on_accelerators(x: ActivationArguments) -> tuple[Tensor, Tensor]:
    wide = x.tensors["x"].float()
    inverse = unit(torch.rsqrt(flushed(wide * wide).cumsum(-1)[..., -1:] + x.setting))
    return flushed(wide * inverse).to(x.tensors["x"].dtype), inverse


def l2norm_back_on_accelerators(x: ActivationArguments) -> Grads:
    """From the y that was returned, rounded as it is."""
    assert x.cotangent is not None
    (y, inverse), dy = norm_on_accelerators(x), x.cotangent.float()
    inner = (dy * y.float()).cumsum(-1)[..., -1:]
    return {"dx": flushed(dy * inverse - inner * y.float() * inverse).to(y.dtype)}


ACCELERATOR = Activated(
    "accelerator",
    gate_softplus=naive_gate(bounded=False),
    gate_bounded=naive_gate(bounded=True),
    beta_sigmoid=ActivationCall(
        beta_on_accelerators, beta_back_on_accelerators, beside_one="rounded"
    ),
    l2norm=ActivationCall(lambda x: norm_on_accelerators(x)[0], l2norm_back_on_accelerators),
)


def softplus_by_parts(x: ActivationArguments) -> Tensor:
    z, rate = biased(x)
    return -rate * (z.clamp(min=0) + torch.log1p(torch.exp(-z.abs())))


def by_exponents(y: Tensor) -> Tensor:
    """s (1 - s) with nothing rounded beside 1."""
    small = torch.exp(-y.abs())
    return small / (1 + small).square()


def slope_by_exponents(x: ActivationArguments) -> Grads:
    assert x.cotangent is not None
    z, rate = biased(x)
    dz = x.setting * by_exponents(rate * z) * rate * x.cotangent
    found = {
        "dz": dz.to(x.tensors["z"].dtype),
        "dA_log": (dz * z).sum((0, 1, 3)).to(x.tensors["A_log"].dtype),
    }
    return (
        found
        if x["dt_bias"] is None
        else {**found, "ddt_bias": dz.sum((0, 1)).to(x.tensors["dt_bias"].dtype)}
    )


def beta_by_exponents(x: ActivationArguments) -> Grads:
    logits = x.tensors["logits"]
    assert x.cotangent is not None
    return {"dlogits": (x.setting * by_exponents(logits.float()) * x.cotangent).to(logits.dtype)}


KEEPER = Activated(
    "keeps what is small beside 1",
    gate_softplus=replace(torch_activations()["gate_softplus"], forward=softplus_by_parts),
    gate_bounded=replace(
        torch_activations()["gate_bounded"], backward=slope_by_exponents, beside_one="kept"
    ),
    beta_sigmoid=replace(
        torch_activations()["beta_sigmoid"], backward=beta_by_exponents, beside_one="kept"
    ),
)
