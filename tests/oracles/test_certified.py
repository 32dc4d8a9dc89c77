"""Balls hold the truth, say honestly how wide they are,
and a wrong digit or a wrong stage falls outside them.
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
from oracles.cache import AnswerCache
from oracles.certified import balls, chunk_form, token_form
from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.inputs import Inputs

Call = Callable[..., Inputs]
mp: Any = mpmath.mp

CASES: dict[str, dict[str, Any]] = {
    **{
        f"gate {name}": {"gate": name}
        for name in ("zero", "slow", "log-sigmoid", "bound", "deep", "underflow", "all reset")
    },
    **{
        f"gate {name}": {"gate": name}
        for name in (
            "mixture per channel",
            "mixture per token",
            "one-token resets",
            "first and last reset",
        )
    },
    **{
        f"keys {name}, beta {beta}": {"key": name, "beta": beta}
        for name in ("identical", "coherent")
        for beta in ("one", "two")
    },
    "keys identical, no decay": {"key": "identical", "beta": "two", "gate": "zero"},
    "keys zero": {"key": "zero"},
    "keys one-hot": {"key": "one-hot", "beta": "one", "gate": "mixture per token"},
    "beta zero": {"beta": "zero", "gate": "mixture per channel"},
    "state absent": {"state": "absent", "gate": "mixture per token"},
    "state large": {"state": "large", "gate": "mixture per token"},
    "three value heads a key head": {"H": 2, "HV": 6, "T": 5, "gate": "mixture per token"},
    "batch": {"B": 3, "T": 7},
    "pack with empty sequences and padding": {
        "T": 20,
        "offsets": [0, 0, 3, 3, 11, 17, 17],
        "gate": "mixture per token",
    },
    "pack of nothing but padding": {"T": 3, "offsets": [0, 0]},
    "one token, one channel": {"T": 1, "K": 1, "V": 1},
    "float64 inputs": {"dtype": torch.float64, "scale": 0.3},
    "bfloat16 inputs": {"dtype": torch.bfloat16},
}


def overlap(a: CertifiedOutputs, b: CertifiedOutputs) -> bool:
    return bool(a.o.overlaps(b.o).all()) and bool(a.final_state.overlaps(b.final_state).all())


def inside(enclosure: Enclosure, exact: Any) -> bool:
    """Every number of the nested lists lies in its ball, and is 0 where that is claimed."""
    with mp.workdps(150):
        flat = flatten(exact, enclosure.high.ndim)
        rows = zip(
            flat,
            *(
                x.flatten().tolist()
                for x in (enclosure.high, enclosure.low, enclosure.radius, enclosure.zero)
            ),
            strict=True,
        )
        return all(
            abs(x - high - low) <= radius and (x == 0 or not zero)
            for x, high, low, radius, zero in rows
        )


def flatten(nested: Any, depth: int) -> list[Any]:
    return nested if depth == 1 else [x for part in nested for x in flatten(part, depth - 1)]


def widest(enclosure: Enclosure) -> float:
    """Largest radius relative to the largest value."""
    return float(enclosure.radius.max() / enclosure.high.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_both_forms_overlap_and_hold_the_multiprecision_value(case: str, call: Call) -> None:
    inputs = call(**CASES[case])
    chunked, stepped = (
        certified.chunk(inputs, bits=192, chunk_size=8),
        certified.recurrence(inputs, bits=192),
    )
    assert overlap(chunked, stepped)
    o, final = multiprecision.recurrence(inputs, digits=120)
    for answer in (chunked, stepped):
        assert inside(answer.o, o)
        assert inside(answer.final_state, final)
        assert answer.o.high.shape == inputs.v.shape
        assert answer.final_state.high.shape == inputs.state.shape


@pytest.mark.parametrize("gate", ["slow", "mixture per token", "one-token resets"])
def test_chunk_sizes_and_tails_agree(gate: str, call: Call) -> None:
    inputs = call(T=70, gate=gate, key="coherent", beta="two")
    truth = certified.recurrence(inputs, bits=256)
    for chunk_size in (1, 16, 17, 64, 1000):
        answer = certified.chunk(inputs, bits=256, chunk_size=chunk_size)
        assert overlap(answer, truth), chunk_size
        assert widest(answer.o) < 2.0**-100, chunk_size


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_radius_shrinks_with_bits_and_is_honest(form: str, call: Call) -> None:
    compute = getattr(certified, form)
    inputs = call(T=30, gate="slow", key="coherent")
    coarse, middle, fine = (compute(inputs, bits=bits) for bits in (64, 96, 512))
    for a, b, c in (
        (coarse.o, middle.o, fine.o),
        (coarse.final_state, middle.final_state, fine.final_state),
    ):
        gap = ((a.high - c.high) + (a.low - c.low)).abs()
        assert bool((gap <= a.radius).all())
        assert bool((b.radius < a.radius * 2.0**-24).all())
        # Honest the other way too: not wide for nothing.
        assert float(gap.max()) > float(a.radius.max()) * 2.0**-24


def test_a_wrong_twentieth_digit_is_outside_the_ball(call: Call) -> None:
    inputs = call(T=12)
    chunked, stepped = certified.chunk(inputs, bits=160), certified.recurrence(inputs, bits=160)
    o, _ = multiprecision.recurrence(inputs, digits=60)
    wrong = replace(chunked, o=replace(chunked.o, low=chunked.o.low + 1e-20 * chunked.o.high))
    assert not bool(wrong.o.overlaps(stepped.o).any())
    assert not inside(wrong.o, o)
    o[0][3][0][2] *= 1 + mp.mpf("1e-20")
    assert not inside(chunked.o, o)


def _forget_resets(g: Any) -> chunk_form.Decay:
    found = CUMSUM(g)
    return replace(found, resets=[[0] * len(row) for row in found.resets])


def _scores_without_the_diagonal(tokens: Any, decay: Any) -> Any:
    A, Q = SCORES(tokens, decay)
    rows = Q.tolist()
    return A, balls.matrix(
        [[balls.ZERO if i == j else x for j, x in enumerate(row)] for i, row in enumerate(rows)]
    )


def _first_order_solve(A: balls.Rows) -> balls.Rows:
    return [[balls.ONE if i == j else -x for j, x in enumerate(row)] for i, row in enumerate(A)]


def _state_not_decayed(tokens: Any, h: Any) -> Any:
    o, after = ADVANCE(tokens, h)
    return o, after + h * flint.arb(2) ** -70


def _keep_the_state(z: Any, gates: list[float]) -> Any:
    return z


CUMSUM, SCORES, ADVANCE = chunk_form.cumsum, chunk_form.scores, chunk_form.advance


@pytest.mark.parametrize(
    ("stage", "fault"),
    [
        ("cumsum", _forget_resets),
        ("scores", _scores_without_the_diagonal),
        ("solve", _first_order_solve),
        ("advance", _state_not_decayed),
    ],
)
def test_a_wrong_stage_makes_the_forms_disagree(
    stage: str, fault: Any, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = call(T=14, gate="one-token resets")
    truth = certified.recurrence(inputs, bits=160)
    assert overlap(certified.chunk(inputs, bits=160, chunk_size=5), truth)
    monkeypatch.setattr(chunk_form, stage, fault)
    assert not overlap(certified.chunk(inputs, bits=160, chunk_size=5), truth)


def test_a_wrong_token_step_makes_the_forms_disagree(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = call(T=14, gate="one-token resets")
    truth = certified.chunk(inputs, bits=160)
    monkeypatch.setattr(token_form, "reset", _keep_the_state)
    assert not overlap(certified.recurrence(inputs, bits=160), truth)


def test_two_float64_and_a_radius_hold_the_ball_whatever_its_size() -> None:
    flint.ctx.prec = 200
    two = flint.arb(2)
    numbers = [
        flint.arb(0),
        flint.arb(1.5),
        flint.arb(1) / 3,
        flint.arb(-1e4).exp(),
        two**-1074 * 3,
        two**-1080,
        -(two**-1022) / 3,
    ]
    numbers += [
        flint.arb(0, 1),
        flint.arb(1, 1e-300),
        flint.arb(1e-310) / 7,
        (1 - two**-60) * two**1024,
        two**1023 / 3,
        two**5000,
    ]
    found = balls.enclose(balls.matrix([numbers]))
    flint.ctx.prec = 8000
    for x, high, low, radius, zero in zip(
        numbers, *(part[0].tolist() for part in vars(found).values()), strict=True
    ):
        if radius < float("inf"):
            assert x.upper() - high - low <= radius
            assert x.lower() - high - low >= -radius
        assert zero == x.is_zero()
    assert found.radius[0, 0] == 0
    assert found.radius[0, 1] == 0
    assert found.radius[0, 2] < 2.0**-106
    assert found.high[0, 3] == 0
    assert 0 < found.radius[0, 3] < 1e-320
    assert found.radius[0, -1] == float("inf")


def test_a_number_that_is_none_proves_nothing() -> None:
    found = balls.enclose(flint.arb_mat(1, 1, [flint.arb("nan")]))
    assert found.radius.item() == float("inf")
    assert not bool(found.zero)


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_zeros_are_proven_where_they_are_exact_and_nowhere_else(form: str, call: Call) -> None:
    compute = getattr(certified, form)
    silent = compute(call(beta="zero", state="absent"), bits=128)
    assert bool(silent.o.zero.all())
    assert bool(silent.final_state.zero.all())
    wiped = compute(call(beta="zero", gate="first and last reset"), bits=128)
    assert bool(wiped.final_state.zero.all())
    tiny = compute(call(beta="zero", gate="underflow"), bits=128)
    assert not bool(tiny.final_state.zero.any())
    assert bool((tiny.final_state.high == 0).all())
    assert bool((tiny.final_state.radius > 0).all())
    padded = compute(call(T=9, offsets=[0, 2, 5]), bits=128)
    assert bool(padded.o.zero[:, 5:].all())
    assert not bool(padded.o.zero[:, :5].any())


def test_an_empty_sequence_hands_its_state_on_exactly(call: Call) -> None:
    inputs = call(T=4, offsets=[0, 0, 4, 4], dtype=torch.float64)
    for answer in (certified.chunk(inputs, bits=96), certified.recurrence(inputs, bits=96)):
        for n in (0, 2):
            assert torch.equal(answer.final_state.high[n], inputs.state[n])
            assert not bool(answer.final_state.radius[n].any())


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_the_deepest_float32_gate_costs_the_tokens_after_it_nothing(form: str, call: Call) -> None:
    g = torch.full((1, 20, 1, 6), -1e-3)
    g[:, 10] = torch.finfo(torch.float32).min
    answer = getattr(certified, form)(call(g=g), bits=128)
    after_reset = getattr(certified, form)(call(g=g.masked_fill(g < -1, -torch.inf)), bits=128)
    assert widest(answer.o) < 2.0**-90
    assert overlap(answer, after_reset)


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_the_deepest_float64_gate_proves_nothing_at_128_bits_and_is_certified_at_more(
    form: Any, call: Call
) -> None:
    g = torch.full((1, 3, 1, 2), -1e-3, dtype=torch.float64)
    g[:, 1] = torch.finfo(torch.float64).min
    inputs = replace(call(T=3, K=2, V=2, dtype=torch.float64), g=g)
    assert bool(getattr(certified, form)(inputs, bits=128).final_state.radius.isinf().all())
    answer = certified.certify(inputs, accept=within(2.0**-90), form=form)
    assert overlap(
        answer,
        getattr(certified, form)(replace(inputs, g=g.masked_fill(g < -1, -torch.inf)), bits=128),
    )


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_precision_is_restored_even_after_a_failure(
    form: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    flint.ctx.prec = 77
    getattr(certified, form)(call(T=3), bits=200)
    assert flint.ctx.prec == 77

    def broken(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(chunk_form, "scores", broken)
    monkeypatch.setattr(token_form, "step", broken)
    with pytest.raises(RuntimeError, match="planted"):
        getattr(certified, form)(call(T=3), bits=200)
    assert flint.ctx.prec == 77


@pytest.mark.parametrize("options", [{"bits": 1}, {"bits": 128, "chunk_size": 0}])
def test_a_senseless_option_is_refused(options: dict[str, int], call: Call) -> None:
    with pytest.raises(ValueError, match="wanted"):
        certified.chunk(call(T=2), **options)


def within(bound: float) -> Callable[[CertifiedOutputs], bool]:
    return lambda answer: widest(answer.o) <= bound and widest(answer.final_state) <= bound


@pytest.mark.parametrize("form", ["chunk", "recurrence"])
def test_precision_rises_until_the_radius_is_accepted(form: Any, call: Call) -> None:
    inputs = call(T=40, key="identical", beta="two", gate="slow")
    easy, hard = (
        certified.certify(inputs, accept=within(bound), form=form) for bound in (1.0, 2.0**-100)
    )
    assert within(2.0**-100)(hard)
    assert not within(2.0**-100)(easy)
    assert overlap(easy, hard)
    assert easy.method != hard.method


def test_keys_that_grow_the_state_are_still_certified(call: Call) -> None:
    k = torch.ones(1, 50, 1, 6)
    inputs = call(T=50, k=k, beta="two", gate="zero")
    answer = certified.certify(inputs, accept=within(2.0**-60))
    assert answer.final_state.high.abs().max() > 1e40
    assert overlap(answer, certified.certify(inputs, accept=within(2.0**-60), form="recurrence"))


def test_a_radius_nothing_can_reach_is_refused_with_the_radius_reached(call: Call) -> None:
    with pytest.raises(
        certified.UncertifiedError, match=r"radius \d.*e-\d.* on o and radius .*bits"
    ):
        certified.certify(call(T=4), accept=lambda _: False)


def test_an_unknown_form_is_refused(call: Call) -> None:
    unknown: Any = "blocks"
    with pytest.raises(ValueError, match="blocks"):
        certified.certify(call(T=2), accept=within(1.0), form=unknown)


def test_a_kept_answer_is_accepted_again_and_replaced_by_a_tighter_one(
    call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, cache = call(T=40, key="identical", beta="two", gate="slow"), AnswerCache(tmp_path)
    loose = certified.certify(inputs, accept=within(1.0), cache=cache)
    tight = certified.certify(inputs, accept=within(2.0**-100), cache=cache)
    assert tight.method != loose.method
    monkeypatch.setattr(chunk_form, "advance", None)
    for bound in (1.0, 2.0**-100):
        again = certified.certify(inputs, accept=within(bound), cache=cache)
        assert torch.equal(again.o.radius, tight.o.radius)
    monkeypatch.undo()
    stepped: Tensor = certified.certify(
        inputs, accept=within(1.0), form="recurrence", cache=cache
    ).o.radius
    assert not torch.equal(stepped, tight.o.radius)
