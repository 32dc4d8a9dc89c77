"""Gate activations, beta and l2norm, forward and backward, against mpmath: finite everywhere, and
right to a stated number of units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from oracles.pointwise.activation import beta_gate, beta_gate_vjp, l2norm, l2norm_vjp
from oracles.pointwise.activation import lower_bound_gate as lower
from oracles.pointwise.activation import lower_bound_gate_vjp as lower_vjp
from oracles.pointwise.activation import softplus_gate as softplus
from oracles.pointwise.activation import softplus_gate_vjp as softplus_vjp

mp: Any = mpmath.mp
UNIT = 2.0**-53
UNITS = 8
# Below this, float64 keeps fewer than 53 bits of something on the way.
SMALLEST = 1e-290
RATES = (-100.0, -30.0, -2.0, 0.0, 1.5, 4.0, 7.0, 30.0, 100.0)
WIDE = (
    0.0,
    1e-300,
    1e-20,
    1e-8,
    1e-3,
    0.1,
    0.7,
    1.0,
    3.0,
    17.0,
    36.0,
    37.5,
    88.0,
    104.0,
    300.0,
    700.0,
    745.0,
    760.0,
    999.0,
    1e4,
)


def grid(dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """z [1, T, HV, K], A_log [HV], dt_bias [HV, K]: both signs of WIDE, biases that cancel z, that
    vanish beside it, and random ones.
    """
    rng = torch.Generator().manual_seed(seed)
    values = torch.tensor([*WIDE, *(-x for x in WIDE)], dtype=torch.float64)
    z = torch.cat((values, torch.randn(24, generator=rng, dtype=torch.float64) * 20)).to(dtype)
    A_log = torch.tensor(RATES, dtype=dtype)
    bias = torch.stack(
        [
            torch.zeros(3),
            torch.tensor([1e-9, -3.3, 17.1]),
            *torch.randn(len(RATES) - 2, 3, generator=rng),
        ]
    ).to(dtype)
    return z[None, :, None, None].expand(1, -1, len(RATES), 3).contiguous(), A_log, bias


def exact(function: Callable[..., Any], *tensors: Tensor) -> list[Any]:
    """`function` of every element, in 60 digits."""
    with mp.workdps(60):
        columns = [
            [mp.mpf(x) for x in t.double().flatten().tolist()]
            for t in torch.broadcast_tensors(*tensors)
        ]
        return [function(*row) for row in zip(*columns, strict=True)]


def worst(found: Tensor, wanted: Sequence[Any], scale: Sequence[Any] | None = None) -> float:
    """The largest error in units of 2^-53 of the exact value, or of `scale`."""
    with mp.workdps(60):
        pairs = zip(
            found.flatten().tolist(), wanted, wanted if scale is None else scale, strict=True
        )
        return max(float(abs(x - y) / (max(abs(s), mp.mpf(SMALLEST)) * UNIT)) for x, y, s in pairs)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x)) if x > 0 else mp.exp(x) / (1 + mp.exp(x))


def sigmoid_slope(x: Any) -> Any:
    return sigmoid(x) * sigmoid(-x)


def log_of_sum(x: Any) -> Any:
    return x + mp.log1p(mp.exp(-x)) if x > 0 else mp.log1p(mp.exp(x))


def softplus_exactly(z: Any, A: Any, b: Any) -> Any:
    return -mp.exp(A) * log_of_sum(z + b)


def lower_exactly(z: Any, A: Any, b: Any) -> Any:
    return -5 * sigmoid(mp.exp(A) * (z + b))


def softplus_slope(z: Any, A: Any, b: Any, dg: Any) -> Any:
    return -mp.exp(A) * sigmoid(z + b) * dg


def lower_slope(z: Any, A: Any, b: Any, dg: Any) -> Any:
    x = mp.exp(A) * (z + b)
    return -5 * mp.exp(A) * sigmoid(x) * sigmoid(-x) * dg


def softplus_plainly(z: Tensor, A: Tensor, b: Tensor) -> Tensor:
    return -A.exp()[:, None] * torch.nn.functional.softplus(z + b)


def lower_plainly(z: Tensor, A: Tensor, b: Tensor) -> Tensor:
    return -5 * torch.sigmoid(A.exp()[:, None] * (z + b))


# The gate, its gradients, both in mpmath, and as autograd would differentiate it.
GATES: dict[str, tuple[Any, Any, Callable[..., Any], Callable[..., Any], Callable[..., Tensor]]] = {
    "softplus": (softplus, softplus_vjp, softplus_exactly, softplus_slope, softplus_plainly),
    "lower bound": (lower, lower_vjp, lower_exactly, lower_slope, lower_plainly),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate", GATES)
def test_gates_and_their_gradients_are_right_to_units_of_the_last_place(
    gate: str, dtype: torch.dtype
) -> None:
    forward, vjp, value, slope, _ = GATES[gate]
    z, A_log, bias = grid(dtype)
    rate = A_log[:, None]
    g = forward(z, A_log, bias)
    assert bool(torch.isfinite(g).all()) and bool((g <= 0).all())
    assert worst(g, exact(value, z, rate, bias)) <= UNITS
    dg = torch.randn(g.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = vjp(z, A_log, bias, dg)
    assert bool(torch.isfinite(found.dz).all())
    dz = exact(slope, z, rate, bias, dg)
    assert worst(found.dz, dz) <= UNITS
    with mp.workdps(60):
        x = exact(plus, z.expand_as(g), bias.expand_as(g))
        pairs = (
            zip(exact(value, z, rate, bias), numbers(dg), strict=True)
            if gate == "softplus"
            else zip(dz, x, strict=True)
        )
        by_rate = [a * b for a, b in pairs]
    for sums, terms, axes in ((found.dA_log, by_rate, (0, 1, 3)), (found.ddt_bias, dz, (0, 1))):
        check_sums(sums, terms, g.shape, axes)


def plus(x: Any, y: Any) -> Any:
    return x + y


def numbers(x: Tensor) -> list[Any]:
    return [mp.mpf(value) for value in x.flatten().tolist()]


def check_sums(found: Tensor, terms: list[Any], shape: torch.Size, axes: tuple[int, ...]) -> None:
    """Sums over axes, against 60 digits, in units of the sum of moduli."""
    places = torch.arange(len(terms)).view(shape)
    kept = [i for i in range(4) if i not in axes]
    groups = places.permute(*kept, *axes).flatten(len(kept)).flatten(0, -2).tolist()
    with mp.workdps(60):
        wanted = [sum(terms[i] for i in group) for group in groups]
        moduli = [sum(abs(terms[i]) for i in group) for group in groups]
    assert worst(found, wanted, moduli) <= 2 * UNITS


@pytest.mark.parametrize("gate", GATES)
def test_gate_gradients_are_the_derivatives(gate: str) -> None:
    forward, vjp, _, _, plainly = GATES[gate]
    rng = torch.Generator().manual_seed(2)
    z, A_log, bias = (
        torch.randn(shape, generator=rng, dtype=torch.float64).requires_grad_()
        for shape in ((2, 5, 3, 4), (3,), (3, 4))
    )
    dg = torch.randn(z.shape, generator=rng, dtype=torch.float64)
    wanted = torch.autograd.grad(plainly(z, A_log, bias), (z, A_log, bias), dg)
    found = vjp(z.detach(), A_log.detach(), bias.detach(), dg)
    for x, y in zip((found.dz, found.dA_log, found.ddt_bias), wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-13, atol=1e-14)
    without = forward(z.detach(), A_log.detach())
    assert torch.equal(without, forward(z.detach(), A_log.detach(), torch.zeros(3, 4)))


def test_the_usual_ways_are_not_right_where_ours_are() -> None:
    """The faults the grid is there for: softplus by log(1 + exp x),
    and s (1 - s) exp(A_log) factor by factor.
    """
    z, A_log, bias = grid(torch.float64)
    naive = -A_log.exp()[:, None] * torch.log(1 + torch.exp(z + bias))
    assert not bool(torch.isfinite(naive).all())
    assert worst(naive.nan_to_num(), exact(softplus_exactly, z, A_log[:, None], bias)) > 1e6
    s = torch.sigmoid(A_log.exp()[:, None] * (z + bias))
    dz = exact(lower_slope, z, A_log[:, None], bias, torch.ones_like(z))
    assert worst(-5 * s * (1 - s) * A_log.exp()[:, None], dz) > 1e6


@pytest.mark.parametrize("doubled", [False, True])
def test_beta_and_its_gradient_are_right_to_units_of_the_last_place(
    doubled: bool,
) -> None:
    b = torch.tensor([*WIDE, *(-x for x in WIDE)], dtype=torch.float64)
    factor = 2 if doubled else 1
    with mp.workdps(60):
        values, slopes = ([factor * x for x in exact(of, b)] for of in (sigmoid, sigmoid_slope))
        assert worst(beta_gate(b, doubled=doubled), values) <= UNITS
        assert (
            worst(
                beta_gate_vjp(b, torch.full_like(b, 3.0), doubled=doubled), [3 * x for x in slopes]
            )
            <= UNITS
        )
    assert bool((beta_gate(b.bfloat16(), doubled=doubled) <= factor).all())


ROWS = {
    "random": torch.randn(6, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
    "zero": torch.zeros(1, 5, dtype=torch.float64),
    "next to zero": torch.full((1, 5), 1e-4, dtype=torch.float64),
    "tiny": torch.tensor([[1e-200, -1e-30, 0.0]], dtype=torch.float64),
    "huge": torch.tensor([[1e300, -1e200, 3.0], [1e160, 1e160, -1e160]], dtype=torch.float64),
    "one element": torch.tensor([[-3e38]], dtype=torch.float64),
}


@pytest.mark.parametrize("rows", ROWS)
def test_l2norm_and_its_gradient_are_right_to_units_of_the_last_place(rows: str) -> None:
    x = ROWS[rows]
    K = x.shape[-1]
    for dy in (
        torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64),
        l2norm(x),
    ):
        y, dx = l2norm(x), l2norm_vjp(x, dy)
        for i in range(len(x)):
            with mp.workdps(700):
                xs, dys = ([mp.mpf(a) for a in t[i].tolist()] for t in (x, dy))
                r = 1 / mp.sqrt(sum(a * a for a in xs) + mp.mpf(1e-6))
                inner = sum(a * r * b for a, b in zip(xs, dys, strict=True))
                moduli = sum(abs(a * r * b) for a, b in zip(xs, dys, strict=True))
                wanted = [r * (b - a * r * inner) for a, b in zip(xs, dys, strict=True)]
                scale = [r * (abs(b) + abs(a * r) * moduli) for a, b in zip(xs, dys, strict=True)]
                unit = [a * r for a in xs]
            assert worst(y[i], unit) <= K + UNITS
            assert worst(dx[i], wanted, scale) <= K + UNITS


def test_a_positive_lower_bound_is_refused() -> None:
    z, A_log, bias = grid(torch.float32)
    for refused in (
        lambda: lower(z, A_log, bias, lower_bound=5.0),
        lambda: lower_vjp(z, A_log, bias, z, lower_bound=0.0),
    ):
        with pytest.raises(ValueError, match="wanted a negative log decay"):
            refused()
