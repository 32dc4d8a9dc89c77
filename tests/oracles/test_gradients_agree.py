"""The float64 gradients agree, whichever form gives them: the token adjoint, the chunk backward,
torch's autograd of the recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles.adjoint import adjoint, adjoint_with_terms
from oracles.arithmetic import Arithmetic
from oracles.chunk import COMPENSATED, STAGES
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents, Gradients, largest_ahead
from oracles.inputs import InputError, Inputs
from oracles.recurrence import recurrence

Call = Callable[..., Inputs]
Weigh = Callable[..., Cotangents]
Differ = Callable[..., dict[str, float]]

TOLERANCE = 1e-13
KINDS = ("of o", "of S_T", "of both", "scaled by 2^-25", "scaled by 2^20")
GATES = (
    "zero",
    "slow",
    "bound",
    "deep",
    "underflow",
    "all reset",
    "log-sigmoid",
    "mixture per channel",
    "mixture per token",
)
RESETS = ("one-token resets", "first and last reset")
PACK = [0, 0, 3, 3, 40, 57, 57]
SHAPES: dict[str, dict[str, Any]] = {
    "batch": {"B": 2, "T": 35},
    "pack with empty sequences and padding": {"T": 60, "offsets": PACK},
    "three value heads a key head": {"T": 33, "H": 2, "HV": 6},
    "one token": {"T": 1},
    "pack of nothing but padding": {"T": 3, "offsets": [0, 0]},
    "no tokens": {"T": 0},
}
CASES: dict[str, dict[str, Any]] = {
    **{
        f"gate {gate}, {shape}": {"gate": gate, **SHAPES[shape]}
        for gate in (*GATES, *RESETS)
        for shape in list(SHAPES)[:2]
    },
    **{f"{shape}": {**given, "gate": "log-sigmoid"} for shape, given in SHAPES.items()},
    **{
        f"keys {key}, beta {beta}": {"T": 40, "key": key, "beta": beta, "gate": "slow"}
        for key in ("random", "identical", "coherent", "zero", "one-hot")
        for beta in ("random", "zero", "one", "two")
    },
    **{
        f"state {state}": {"T": 20, "state": state, "gate": "mixture per token"}
        for state in ("absent", "large")
    },
    "float64, with a scale": {"dtype": torch.float64, "scale": -0.3},
}


def autograd(inputs: Inputs, cotangents: Cotangents) -> Gradients[torch.Tensor]:
    given = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "g": inputs.g,
        "beta": inputs.beta,
        "initial_state": inputs.state,
    }
    leaves = {name: tensor.double().clone().requires_grad_() for name, tensor in given.items()}
    pairs = zip(recurrence(replace(inputs, **leaves)), cotangents.of(inputs), strict=True)
    outputs, weights = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), weights, materialize_grads=True)
    dq, dk, dv, dg, dbeta, d_initial_state = found
    return Gradients(dq, dk, dv, dg, dbeta, d_initial_state)


@pytest.mark.parametrize("case", CASES)
def test_the_three_forms_agree(
    case: str, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    inputs = call(**CASES[case])
    weights = cotangents(inputs)
    found, terms = adjoint_with_terms(inputs, weights)
    for other in (
        autograd(inputs, weights),
        chunk_backward(inputs, weights),
        chunk_backward(inputs, weights, chunk_size=17),
    ):
        assert max(differences(other, found, terms).values()) <= TOLERANCE


def test_decays_after_a_deep_gate_keep_every_digit_where_the_sums_keep_their_rest(
    call: Call, cotangents: Weigh, differences: Differ
) -> None:
    inputs = call(T=40, gate="slow")
    inputs.g[:, 3] = -3e5
    inputs.g[:, 4:] *= torch.rand(inputs.g[:, 4:].shape, generator=torch.Generator().manual_seed(5))
    weights = cotangents(inputs)
    found, terms = adjoint_with_terms(inputs, weights)
    plain, kept = (
        max(differences(chunk_backward(inputs, weights, stages=way), found, terms).values())
        for way in (STAGES, COMPENSATED)
    )
    assert plain > 100 * TOLERANCE
    assert kept <= TOLERANCE / 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", ["slow", "mixture per token", "one-token resets"])
def test_whichever_output_has_a_cotangent(
    gate: str, kind: str, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    inputs = call(gate=gate, **SHAPES["pack with empty sequences and padding"])
    weights = cotangents(inputs, kind)
    found, terms = adjoint_with_terms(inputs, weights)
    for other in (autograd(inputs, weights), chunk_backward(inputs, weights, chunk_size=16)):
        assert max(differences(other, found, terms).values()) <= TOLERANCE


@pytest.mark.parametrize("chunk_size", [1, 2, 15, 16, 17, 33, 64, 128])
@pytest.mark.parametrize("gate", ["slow", "mixture per token"])
def test_any_chunk_size_and_tail(
    gate: str, chunk_size: int, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    inputs = call(T=140, H=1, HV=2, offsets=[0, 1, 67, 140], gate=gate)
    weights = cotangents(inputs)
    found, terms = adjoint_with_terms(inputs, weights)
    assert (
        max(
            differences(
                chunk_backward(inputs, weights, chunk_size=chunk_size), found, terms
            ).values()
        )
        <= TOLERANCE
    )


@pytest.mark.parametrize("size", [1e-4, 1e-30])
def test_keys_next_to_zero(size: float, call: Call, cotangents: Weigh, differences: Differ) -> None:
    inputs = call(T=40, gate="slow", dtype=torch.float64)
    inputs = replace(inputs, k=inputs.k * size)
    weights = cotangents(inputs)
    found, terms = adjoint_with_terms(inputs, weights)
    for other in (autograd(inputs, weights), chunk_backward(inputs, weights)):
        assert max(differences(other, found, terms).values()) <= TOLERANCE


@pytest.mark.parametrize("form", [adjoint, chunk_backward])
def test_padding_gets_exactly_nothing(form: Any, call: Call, cotangents: Weigh) -> None:
    inputs = call(T=60, offsets=PACK, H=1, HV=2)
    found = form(inputs, cotangents(inputs)).named()
    for name in ("dq", "dk", "dv", "dg", "dbeta"):
        assert not bool(found[name][:, PACK[-1] :].any())
        assert bool(found[name][:, : PACK[-1]].any())


@pytest.mark.parametrize("form", [adjoint, chunk_backward])
@pytest.mark.parametrize(
    "gate", ["one-token resets", "first and last reset", "mixture per token", "all reset"]
)
def test_the_gradient_of_a_hard_reset_is_exactly_nothing(
    form: Any, gate: str, call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=40, gate=gate, dtype=torch.float64)
    dg = form(inputs, cotangents(inputs)).dg
    assert not bool(dg[inputs.g.isneginf()].any())
    assert bool(torch.isfinite(dg).all())


@pytest.mark.parametrize("form", [adjoint, chunk_backward])
@pytest.mark.parametrize("offsets", [[0, 1], [0, 1, 2, 3]])
def test_a_token_alone_without_a_state_has_no_gradient_of_its_gate(
    form: Any, offsets: list[int], call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=offsets[-1], offsets=offsets, state="absent")
    assert not bool(form(inputs, cotangents(inputs)).dg.any())


@pytest.mark.parametrize("form", [adjoint, chunk_backward])
def test_value_heads_add_up_in_their_key_head(form: Any, call: Call, cotangents: Weigh) -> None:
    inputs = call(T=20, H=2, HV=6)
    repeated = replace(
        inputs, q=inputs.q.repeat_interleave(3, dim=2), k=inputs.k.repeat_interleave(3, dim=2)
    )
    weights = cotangents(inputs)
    shared, own = form(inputs, weights), form(repeated, weights)
    torch.testing.assert_close(shared.dq, own.dq.unflatten(2, (2, 3)).sum(3), rtol=0, atol=0)
    torch.testing.assert_close(shared.dk, own.dk.unflatten(2, (2, 3)).sum(3), rtol=0, atol=0)
    assert torch.equal(shared.dg, own.dg)


@pytest.mark.parametrize("form", [adjoint, chunk_backward])
def test_powers_of_two_in_the_cotangents_come_out_exactly(
    form: Any, call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=40, gate="slow")
    plain = form(inputs, cotangents(inputs)).named()
    for kind, size in (("scaled by 2^-25", 2.0**-25), ("scaled by 2^20", 2.0**20)):
        scaled = form(inputs, cotangents(inputs, kind)).named()
        assert all(torch.equal(scaled[name], x * size) for name, x in plain.items())


def test_dg_is_no_larger_than_its_terms_and_they_only_grow_towards_the_start_of_a_chunk(
    call: Call, cotangents: Weigh
) -> None:
    inputs = call(T=60, offsets=PACK, key="coherent", beta="one", gate="slow")
    found, terms = adjoint_with_terms(inputs, cotangents(inputs))
    ahead = largest_ahead(inputs, terms.dg, 16)
    assert bool((found.dg.abs() <= terms.dg).all())
    assert bool((ahead >= terms.dg).all())
    for start, end in ((0, 3), (3, 19), (19, 35), (35, 40), (40, 56), (56, 57)):
        assert bool((ahead[:, start] == terms.dg[:, start:end].amax(1)).all())
        assert bool((ahead[:, start:end].diff(dim=1) <= 0).all())
    assert not bool(ahead[:, 57:].any())


@pytest.mark.parametrize("kind", ["of o", "of S_T", "of both"])
def test_a_state_that_the_first_tokens_erase_is_compared_at_the_size_of_what_they_erase(
    kind: str, call: Call, cotangents: Weigh, differences: Differ
) -> None:
    """One channel, unit keys, beta = 1: every token overwrites the state, the adjoint is 0 and the
    chunk form's a rounding error.
    """
    inputs = call(T=40, K=1, V=3, key="identical", beta="one", gate="slow", dtype=torch.float64)
    weights = cotangents(inputs, kind)
    found, terms = adjoint_with_terms(inputs, weights)
    assert not bool(found.d_initial_state.any())
    assert bool((terms.d_initial_state > 1e-3).all())
    assert max(differences(chunk_backward(inputs, weights), found, terms).values()) <= TOLERANCE


def test_float32_stays_float32(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=20)
    seen: list[torch.dtype] = []

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        del name
        seen.append(tensor.dtype)
        return tensor

    for form in (adjoint, chunk_backward):
        found = form(
            inputs, cotangents(inputs), dtype=torch.float32, arithmetic=Arithmetic(store=note)
        ).named()
        assert {x.dtype for x in (*found.values(),)} == {torch.float32}
    assert set(seen) == {torch.float32}


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "wanted at least one cotangent"),
    ({"do": torch.ones(1, 6, 1, 4)}, r"do: wanted shape \[1, 6, 1, 5\].*got \[1, 6, 1, 4\]"),
    ({"d_final_state": torch.ones(1, 1, 5, 6)}, r"d_final_state: wanted shape \[1, 1, 6, 5\]"),
    (
        {"do": torch.ones(1, 6, 1, 5, dtype=torch.int64)},
        "do: wanted a floating-point tensor, got torch.int64",
    ),
    ({"do": torch.full((1, 6, 1, 5), float("nan"))}, "do: wanted finite values, got 30 others"),
]


@pytest.mark.parametrize(
    ("given", "message"), BAD, ids=lambda value: value[:30] if isinstance(value, str) else None
)
def test_a_bad_cotangent_is_named(given: dict[str, Any], message: str, call: Call) -> None:
    with pytest.raises(InputError, match=message):
        adjoint(call(T=6), Cotangents(**given))
