"""Balls hold the gradients: two independent certified ways,
mpmath and float64 agree, and a wrong digit falls outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flint
import mpmath
import pytest
import torch
from torch import Tensor

from oracles import certified, multiprecision
from oracles.adjoint import adjoint
from oracles.certified import UncertifiedError, chunk_form
from oracles.certified.adjoint import Sweep
from oracles.enclosure import Enclosure
from oracles.gradients import Cotangents, GradientAnswer, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

Call = Callable[..., Inputs]
Weigh = Callable[..., Cotangents]
Differ = Callable[..., dict[str, float]]
mp: Any = mpmath.mp

GATES = (
    "zero",
    "slow",
    "log-sigmoid",
    "bound",
    "deep",
    "underflow",
    "all reset",
    "mixture per channel",
    "mixture per token",
)
RESETS = ("one-token resets", "first and last reset")
CASES: dict[str, dict[str, Any]] = {
    **{f"gate {name}": {"gate": name} for name in (*GATES, *RESETS)},
    **{
        f"keys {key}, beta {beta}": {"key": key, "beta": beta}
        for key in ("identical", "coherent", "zero")
        for beta in ("one", "two")
    },
    "keys one-hot": {"key": "one-hot", "beta": "one", "gate": "mixture per token"},
    "beta zero": {"beta": "zero", "gate": "mixture per channel"},
    "state absent": {"state": "absent", "gate": "mixture per token"},
    "state large": {"state": "large", "gate": "mixture per token"},
    "three value heads a key head": {"H": 2, "HV": 6, "T": 9, "gate": "mixture per token"},
    "batch": {"B": 3, "T": 7},
    "pack with empty sequences and padding": {
        "T": 20,
        "offsets": [0, 0, 3, 3, 11, 17, 17],
        "gate": "mixture per token",
    },
    "pack of nothing but padding": {"T": 3, "offsets": [0, 0]},
    "one token, one channel": {"T": 1, "K": 1, "V": 1},
    "more tokens than a kept state spans": {"T": 40, "gate": "mixture per token"},
    "float64 inputs": {"dtype": torch.float64, "scale": 0.3},
    "bfloat16 inputs": {"dtype": torch.bfloat16},
}
KINDS = ("of o", "of S_T", "of both", "scaled by 2^-25", "scaled by 2^20")


def anywhere(inputs: Inputs, *, seed: int = 3) -> Gradients[Tensor]:
    """A direction of random signs, of the shapes of the inputs."""
    rng = torch.Generator().manual_seed(seed)
    given = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, inputs.state)
    dq, dk, dv, dg, dbeta, d_state = (
        torch.randint(2, x.shape, generator=rng).double() * 2 - 1 for x in given
    )
    return Gradients(dq, dk, dv, dg, dbeta, d_state)


def relative(found: Enclosure) -> float:
    return float(found.radius.max() / found.high.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_the_adjoint_and_the_slope_of_the_chunk_form_overlap(
    case: str, call: Call, cotangents: Weigh
) -> None:
    inputs = call(**CASES[case])
    weights, direction = cotangents(inputs), anywhere(inputs)
    answer = certified.adjoint(inputs, weights, bits=256)
    found, wanted = (
        certified.directional(inputs, weights, direction, bits=768),
        certified.slope(answer.gradients, direction, bits=256),
    )
    assert bool(found.overlaps(wanted))
    assert found.high == 0 or relative(found) < 2.0**-80


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_output_has_a_cotangent(kind: str, call: Call, cotangents: Weigh) -> None:
    inputs = call(T=20, HV=2, offsets=[0, 3, 3, 18], gate="mixture per token")
    weights = cotangents(inputs, kind)
    answer = certified.adjoint(inputs, weights, bits=256)
    for seed in range(4):
        direction = anywhere(inputs, seed=seed)
        found = certified.directional(inputs, weights, direction, bits=768)
        assert bool(found.overlaps(certified.slope(answer.gradients, direction, bits=256)))
        assert relative(found) < 2.0**-80


@pytest.mark.parametrize("case", CASES)
def test_float64_lies_within_rounding_of_the_balls(
    case: str, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    inputs = call(**CASES[case])
    weights = cotangents(inputs)
    answer = certified.adjoint(inputs, weights, bits=256)
    exact = Gradients(**{name: x.high for name, x in answer.gradients.named().items()})
    found = adjoint(inputs, weights)
    assert max(differences(found, exact, answer.terms).values()) <= 1e-13


TINY: dict[str, dict[str, Any]] = {
    "two value heads": {"T": 3, "K": 2, "V": 2, "HV": 2},
    "pack": {"T": 6, "K": 2, "V": 3, "offsets": [0, 0, 2, 5], "gate": "mixture per token"},
    "deep": {"T": 3, "K": 2, "V": 2, "gate": "deep"},
    "resets": {"T": 4, "K": 2, "V": 1, "gate": "first and last reset", "B": 2},
    "zero keys": {"T": 3, "K": 2, "V": 2, "key": "zero", "beta": "two"},
}


@pytest.mark.parametrize("case", TINY)
def test_the_numerical_derivative_of_mpmath_lies_in_every_ball(
    case: str, call: Call, cotangents: Weigh
) -> None:
    inputs = call(**TINY[case])
    weights = cotangents(inputs)
    answer = certified.adjoint(inputs, weights, bits=256).gradients.named()
    for name, nested in multiprecision.gradients(inputs, weights, digits=80).named().items():
        found = answer[name]
        with mp.workdps(90):
            # What a difference of 80 digits leaves of the loss, which is of order one.
            slack = mp.mpf(10) ** -70
            parts = (x.flatten().tolist() for x in (found.high, found.low, found.radius))
            assert all(
                abs(x - high - low) <= radius + slack
                for x, high, low, radius in zip(flat(nested), *parts, strict=True)
            ), name


def flat(nested: Any) -> list[Any]:
    return [x for part in nested for x in flat(part)] if isinstance(nested, list) else [nested]


def test_a_wrong_twentieth_digit_is_outside_the_ball(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=12)
    weights, direction = cotangents(inputs), anywhere(inputs)
    found = certified.directional(inputs, weights, direction, bits=768)
    gradients = certified.adjoint(inputs, weights, bits=256).gradients
    for name in GRADIENTS:
        right: Enclosure = getattr(gradients, name)
        low = right.low.clone()
        low.view(-1)[0] += 1e-20 * right.high.view(-1)[0]
        changes: dict[str, Any] = {name: replace(right, low=low)}
        wrong = replace(gradients, **changes)
        assert not bool(found.overlaps(certified.slope(wrong, direction, bits=256))), name


def _state_a_little_large(tokens: Any, h: Any) -> Any:
    o, after = ADVANCE(tokens, h)
    return o, after * (1 + flint.arb(2) ** -70)


ADVANCE = chunk_form.advance


def test_a_wrong_chunk_form_makes_them_disagree(
    call: Call, cotangents: Weigh, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = call(T=14)
    weights, direction = cotangents(inputs), anywhere(inputs)
    wanted = certified.slope(
        certified.adjoint(inputs, weights, bits=256).gradients, direction, bits=256
    )
    monkeypatch.setattr(chunk_form, "advance", _state_a_little_large)
    assert not bool(certified.directional(inputs, weights, direction, bits=768).overlaps(wanted))


def test_the_radius_shrinks_with_bits_and_is_honest(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=30, gate="slow", key="coherent")
    weights = cotangents(inputs)
    coarse, middle, fine = (
        certified.adjoint(inputs, weights, bits=bits).named() for bits in (64, 96, 512)
    )
    for name in GRADIENTS:
        a, b, c = coarse[name], middle[name], fine[name]
        gap = ((a.high - c.high) + (a.low - c.low)).abs()
        assert bool((gap <= a.radius).all())
        assert bool((b.radius < a.radius * 2.0**-24).all())
        # Honest the other way too: not wide for nothing.
        assert float(gap.max()) > float(a.radius.max()) * 2.0**-32


def test_a_step_too_wide_for_its_bits_widens_the_radius_instead_of_the_error(
    call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=12)
    weights, direction = cotangents(inputs), anywhere(inputs)
    exact = certified.directional(inputs, weights, direction, bits=768)
    for bits in (32, 64, 128):
        found = certified.directional(inputs, weights, direction, bits=bits)
        assert bool(found.overlaps(exact))
        assert found.radius > exact.radius


def test_zeros_are_proven_where_they_are_exact(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=9, HV=2, offsets=[0, 2, 5], gate="one-token resets")
    found = certified.adjoint(inputs, cotangents(inputs), bits=128).gradients
    for x in (found.dq, found.dk, found.dv, found.dg, found.dbeta):
        assert bool(x.zero[:, 5:].all())
    assert bool(found.dg.zero[inputs.g.isneginf()].all())
    assert not bool(found.dv.zero[:, :5].any())
    silent = certified.adjoint(inputs, cotangents(inputs, "of S_T"), bits=128).gradients
    assert bool(silent.dq.zero.all())


def test_precision_is_restored_even_after_a_failure(
    call: Call, cotangents: Weigh, monkeypatch: pytest.MonkeyPatch
) -> None:
    flint.ctx.prec = 77
    inputs = call(T=3)
    certified.adjoint(inputs, cotangents(inputs), bits=200)
    assert flint.ctx.prec == 77

    def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(Sweep, "back", broken)
    with pytest.raises(RuntimeError, match="planted"):
        certified.adjoint(inputs, cotangents(inputs), bits=200)
    assert flint.ctx.prec == 77
    with pytest.raises(ValueError, match="wanted a precision"):
        certified.adjoint(inputs, cotangents(inputs), bits=1)


def test_the_deepest_float32_gate_is_a_hard_reset_to_every_other_gradient(
    call: Call, cotangents: Weigh
) -> None:
    g = torch.full((1, 20, 1, 6), -1e-3)
    g[:, 10] = torch.finfo(torch.float32).min
    weights = cotangents(call(g=g))
    deep, reset = (
        certified.adjoint(call(g=x), weights, bits=192).named()
        for x in (g, g.masked_fill(g < -1, -torch.inf))
    )
    for name, found in deep.items():
        assert bool(found.overlaps(reset[name]).all()), name
        assert relative(found) < 2.0**-90, name


def within(bound: float) -> Callable[[GradientAnswer], bool]:
    return lambda answer: all(relative(x) <= bound for x in answer.named().values())


def test_precision_rises_until_the_radius_is_accepted(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=60, key="coherent", beta="two", gate="slow")
    weights = cotangents(inputs)
    easy, hard = (
        certified.certify_gradients(inputs, weights, accept=within(bound))
        for bound in (1e30, 2.0**-100)
    )
    assert within(2.0**-100)(hard)
    assert easy.method != hard.method
    assert all(
        bool(x.overlaps(y).all())
        for x, y in zip(easy.named().values(), hard.named().values(), strict=True)
    )


def test_a_radius_nothing_can_reach_is_refused_with_the_radius_reached(
    call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=4)
    with pytest.raises(
        UncertifiedError, match=r"adjoint, q .*radius \d.*e-\d.* on dq and radius .*bits"
    ):
        certified.certify_gradients(inputs, cotangents(inputs), accept=lambda _: False)
