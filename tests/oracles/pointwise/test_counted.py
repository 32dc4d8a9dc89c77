"""Short convolution and gated norm against their definitions in 120 digits: values, and gradients
by central differences of a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from kdaverify.operators.gated_norm.problem import REGIMES as NORM_REGIMES
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.short_conv.problem import REGIMES as CONV_REGIMES
from kdaverify.operators.short_conv.problem import ShortConvProblem
from oracles.pointwise.gated_norm import GatedNorm, GatedNormCall
from oracles.pointwise.short_conv import ShortConv, ShortConvCall

DIGITS: Final = 120
STEP: Final = mpf(10) ** -50
Numbers = dict[str, Any]
"""By name, nested lists of numbers of 120 digits."""
CONVS: Final = [
    {"lengths": (2, 0, 3, 1), "T": 7, "W": 4, "state": "random", "bias": True},
    {"B": 2, "T": 3, "W": 3},
    {"T": 1, "W": 4, "state": "random", "activation": "none"},
    {"T": 5, "W": 2, "state": "random", "bias": True, "activation": "none"},
]


def digits(tensor: Tensor) -> Any:
    return [digits(part) for part in tensor] if tensor.ndim else mpf(float(tensor))


def flat(values: Any) -> list[Any]:
    return [x for part in values for x in flat(part)] if isinstance(values, list) else [values]


def activated(name: str, z: Any) -> Any:
    s = 1 / (1 + mpmath.exp(-z))
    return {"silu": z * s, "sigmoid": s, "none": z}[name]


def conv(call: ShortConvCall, given: Numbers) -> Numbers:
    """The definition, token by token."""
    B, T, D = call.x.shape
    W, y, states = call.W, [[[mpf(0)] * D for _ in range(T)] for _ in range(B)], list[Any]()
    for n, (first, length) in enumerate(call.spans):
        b, start = divmod(first, T) if call.cu_seqlens is None else (0, first)
        old = (
            given["initial_state"][n]
            if "initial_state" in given
            else [[mpf(0)] * W for _ in range(D)]
        )
        new = list[Any]()
        for d in range(D):
            stream = [*old[d], *(given["x"][b][start + t][d] for t in range(length))]
            for t in range(length):
                z = sum(given["weight"][d][j] * stream[t + 1 + j] for j in range(W))
                z += given["bias"][d] if "bias" in given else 0
                y[b][start + t][d] = activated(call.activation, z)
            new.append(stream[len(stream) - W :])
        states.append(new)
    return {"y": y, "final_state": states}


def norm(call: GatedNormCall, given: Numbers) -> Numbers:
    eps, V = mpf(call.eps), call.x.shape[3]

    def row(x: list[Any], z: list[Any]) -> list[Any]:
        gates = [activated(call.activation, g) for g in z]
        gated = [a * g for a, g in zip(x, gates, strict=True)]
        normed = gated if call.gate_first else x
        root = mpmath.sqrt(sum(a * a for a in normed) / V + eps)
        return [a / root * w for a, w in zip(gated, given["weight"], strict=True)]

    rows = [
        [[row(x, z) for x, z in zip(*h, strict=True)] for h in zip(*t, strict=True)]
        for t in zip(given["x"], given["gate"], strict=True)
    ]
    return {"y": rows}


def loss_of(outputs: Numbers, cotangents: Mapping[str, Any]) -> Any:
    named = {"dy": "y", "d_final_state": "final_state"}
    return sum(
        a * b
        for name, dy in cotangents.items()
        for a, b in zip(flat(outputs[named[name]]), flat(dy), strict=True)
    )


def differences(
    define: Callable[[Any, Numbers], Numbers],
    call: Any,
    given: Numbers,
    dy: Mapping[str, Any],
    source: str,
) -> list[Any]:
    """The central difference of the loss by every element of one input."""

    def moved(values: Any, at: list[int], by: Any) -> Any:
        if not isinstance(values, list):
            at[0] -= 1
            return values + (by if at[0] == -1 else 0)
        return [moved(part, at, by) for part in values]

    def loss(at: int, by: Any) -> Any:
        return loss_of(define(call, {**given, source: moved(given[source], [at], by)}), dy)

    return [
        (loss(at, STEP) - loss(at, -STEP)) / (2 * STEP) for at in range(len(flat(given[source])))
    ]


def agree(
    call: Any,
    counted: Any,
    define: Callable[[Any, Numbers], Numbers],
    cotangents: Mapping[str, Tensor],
) -> None:
    """Every value, and every derivative, within the oracle's radius; radii are far below the digits
    of any format judged.
    """
    with mp.workdps(DIGITS):
        given = {
            name: digits(tensor)
            for name, tensor in call.tensors().items()
            if tensor.is_floating_point()
        }
        dy = {name: digits(tensor) for name, tensor in cotangents.items()}
        exact = {name: flat(values) for name, values in define(call, given).items()}
        gradients = {
            name: differences(define, call, given, dy, source)
            for name, source in call.signature.gradients.items()
            if source in given
        }
        for name, (value, error) in {**counted.forward(), **counted.backward(cotangents)}.items():
            wanted = exact[name] if name in exact else gradients[name]
            for found, radius, true in zip(
                value.flatten().tolist(), error.bound.flatten().tolist(), wanted, strict=True
            ):
                # The differences keep 70 digits.
                assert abs(mpf(found) - true) <= radius + mpf(10) ** -60, (
                    name,
                    found,
                    radius,
                    mpmath.nstr(true, 20),
                )
            size = value.abs().max()
            assert float(error.bound.max()) <= 2.0**-38 * max(1.0, float(size)), name


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", CONVS, ids=str)
@pytest.mark.parametrize("value", CONV_REGIMES)
def test_a_convolution_is_its_definition(shape: dict[str, Any], value: str) -> None:
    call = ShortConvProblem.model_validate({"D": 2, "value": value, **shape}).inputs()
    cotangents = {"dy": drawn(1, *call.x.shape), "d_final_state": drawn(2, call.N, 2, call.W)}
    if call.cu_seqlens is not None:
        cotangents["dy"][:, sum(call.lengths) :] = 0
    agree(call, ShortConv(call), conv, cotangents)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("value", NORM_REGIMES)
@pytest.mark.parametrize("first", [None, "gate"])
def test_a_norm_is_its_definition(activation: str, value: str, first: str | None) -> None:
    sizes = {"B": 2, "T": 2, "H": 1, "V": 3}
    fields = {**sizes, "value": value, "activation": activation, "first": first}
    call = GatedNormProblem.model_validate(fields).inputs()
    agree(call, GatedNorm(call), norm, {"dy": drawn(1, *call.x.shape)})


def test_a_final_state_is_a_copy_and_zeros_are_exact_where_every_term_is() -> None:
    call = ShortConvProblem(T=9, D=5, value="sparse", state="random").inputs()
    value, error = ShortConv(call).forward()["final_state"]
    assert torch.equal(value, call.x[:, 5:].mT.double()) and not error.bound.any()
    y, error = ShortConv(call).forward()["y"]
    dead = ShortConv(call).moduli.view_as(y) == 0
    assert dead.any() and torch.equal(error.bound == 0, dead) and not y[dead].any()
