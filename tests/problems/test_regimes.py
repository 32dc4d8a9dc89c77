"""Every regime gives valid tensors in every dtype, and the tensors it promises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from kdaverify.problems import DTYPES, REGIMES, Problem
from oracles.recurrence import recurrence

Plain: TypeAlias = Callable[..., Problem]

NAMES = [(axis, name) for axis, table in REGIMES.items() for name in table]
SHAPES = {
    "batch": {"B": 2, "T": 21},
    "pack": {"B": 1, "T": 40, "lengths": (0, 1, 33, 0)},
    "narrow": {"B": 1, "T": 3, "H": 1, "HV": 1, "K": 1, "V": 1},
    "empty": {"B": 1, "T": 0, "lengths": (0, 0)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axis", "name"), NAMES)
def test_every_regime_gives_inputs_a_kernel_must_take(
    plain: Plain, axis: str, name: str, dtype: str
) -> None:
    for shape in SHAPES.values():
        plain(**shape, **{axis: name}, dtype=dtype).inputs()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", REGIMES["key"])
def test_every_transition_is_a_contraction_after_rounding(
    plain: Plain, key: str, dtype: str
) -> None:
    for beta in REGIMES["beta"]:
        x = plain(B=1, H=2, HV=2, K=100, key=key, beta=beta, dtype=dtype).inputs()
        strength = x.beta.double() * x.k.double().square().sum(-1)
        assert float(strength.max()) <= 2.0


@pytest.mark.parametrize("key", REGIMES["key"])
def test_exact_outputs_without_decay_stay_far_below_the_largest_fp16_number(
    plain: Plain, key: str
) -> None:
    for beta in ("one", "two", "uniform"):
        for K in (1, 32):
            sizes = {"B": 2, "T": 257, "H": 1, "HV": 1, "K": K, "V": 8}
            problem = plain(
                **sizes,
                key=key,
                gate="zero",
                beta=beta,
                state="large",
                value="large",
                dtype="fp16",
                scale=0.5,
            )
            assert max(float(y.abs().max()) for y in recurrence(problem.inputs())) < 1.2e4


@pytest.mark.parametrize(("axis", "name"), NAMES)
def test_every_regime_says_in_one_line_which_faults_it_exposes(axis: str, name: str) -> None:
    regime = REGIMES[axis][name]
    assert regime.name == name
    assert re.fullmatch(r"[^\n]{20,110}", regime.exposes)
    assert re.search(r"\([A-Z]{1,2}\d+(, [A-Z]{1,2}\d+)*\)", regime.exposes)


def _gates(plain: Plain, name: str) -> Tensor:
    return plain(B=1, T=160, HV=2, K=32, gate=name, dtype="fp64").inputs().g


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("zero", {0.0}),
        ("slow", {-1e-3}),
        ("mild", {-0.05}),
        ("bound-5", {-5.0}),
        ("bound-20", {-20.0}),
        ("bound-100", {-100.0}),
        ("huge", {-1e4}),
    ],
)
def test_constant_gates_are_constant(plain: Plain, name: str, values: set[float]) -> None:
    assert set(_gates(plain, name).unique().tolist()) == values


def test_log_sigmoid_gates_have_the_range_of_a_trained_gate(plain: Plain) -> None:
    g = _gates(plain, "log-sigmoid")
    assert -4.0 < float(g.min()) < -2.0
    assert -0.1 < float(g.max()) < 0.0
    assert abs(float(g.median()) + math.log(2)) < 0.02


def test_every_other_token_of_half_zero_gates_is_zero(plain: Plain) -> None:
    g = _gates(plain, "half-zero")
    assert bool((g[:, ::2] == 0).all())
    assert bool((g[:, 1::2] < 0).all())


def test_log_uniform_gates_fill_every_octave(plain: Plain) -> None:
    octaves = torch.frexp(_gates(plain, "log-uniform").abs()).exponent - 1
    assert set(octaves.unique().tolist()) == set(range(-20, 7))
    assert float(_gates(plain, "log-uniform").abs().max()) < 2.0**6.6


def test_spread_gates_part_channels_by_more_than_fp32_holds(plain: Plain) -> None:
    total = _gates(plain, "spread")[:, :64].sum(1)
    assert float((total.amax(-1) - total.amin(-1)).min()) > 88


def test_strong_then_weak_gates_change_in_the_middle_of_each_sequence(plain: Plain) -> None:
    g = plain(B=1, T=70, lengths=(40, 1, 20), gate="strong-then-weak").inputs().g[0]
    strong = (g < -9).all(-1).all(-1)
    assert strong.nonzero().flatten().tolist() == [*range(20), 40, *range(41, 51)]


@pytest.mark.parametrize(
    ("name", "value"), [("one-token-reset", -1e4), ("one-token-hard-reset", -math.inf)]
)
def test_one_token_of_each_sequence_resets_every_channel(
    plain: Plain, name: str, value: float
) -> None:
    problem = plain(B=1, T=70, lengths=(40, 0, 1, 20), gate=name)
    resets = (problem.inputs().g[0] == torch.tensor(value)).all(-1).all(-1)
    assert [int(resets[start : start + length].sum()) for _, start, length in problem.spans] == [
        1,
        0,
        1,
        1,
    ]


def test_hard_resets_are_scattered(plain: Plain) -> None:
    assert 0.03 < float((_gates(plain, "hard-reset") == -math.inf).double().mean()) < 0.1


def test_deep_resets_are_scattered_among_ordinary_gates(plain: Plain) -> None:
    g = _gates(plain, "deep-resets")
    assert all(0.01 < float((g == value).double().mean()) < 0.06 for value in (-1e5, -1e6))
    assert bool(((g > -5) | (g == -1e5) | (g == -1e6)).all())


def test_mixed_gates_hold_every_kind_in_one_tensor(plain: Plain) -> None:
    g = _gates(plain, "mixed")
    assert set(g[0, 0].flatten().tolist()) >= {0.0, -1e-3, -5.0, -20.0, -100.0, -1e4, -math.inf}
    varying = (g != g[:, :1]).any(1)
    assert bool(varying.any())
    assert not bool(varying.all())


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9, 0.99])
def test_coherent_keys_have_the_stated_cosine(plain: Plain, rho: float) -> None:
    k = plain(B=1, T=120, K=128, key=f"coherent-{rho}", dtype="fp64").inputs().k[0, :, 0]
    cosines = (k @ k.T)[~torch.eye(120, dtype=torch.bool)]
    assert abs(float(cosines.mean()) - rho) < 0.03
    assert float(cosines.std()) < 0.1


def test_identical_and_alternating_keys_share_one_direction(plain: Plain) -> None:
    for key, expected in (
        ("identical", torch.ones(21)),
        ("alternating", 1.0 - 2.0 * (torch.arange(21) % 2)),
    ):
        k = plain(B=1, key=key).inputs().k[0, :, 1]
        assert torch.equal(k, k[:1] * expected[:, None])


def test_one_hot_queries_read_a_row_already_written(plain: Plain) -> None:
    x = plain(B=1, T=100, K=16, key="one-hot").inputs()
    written, read = x.k[0, :, 0].argmax(-1), x.q[0, :, 0].argmax(-1)
    assert bool((x.k.sum(-1) == 1).all())
    assert all(int(read[t]) in written[: t + 1].tolist() for t in range(100))
    assert written[:32].tolist() == [*range(16), *range(16)]


@pytest.mark.parametrize(
    ("dtype", "size"), [("bf16", 2.0**-13), ("fp16", 2.0**-5), ("fp64", 2.0**-13)]
)
def test_tiny_keys_are_tiny_but_normal_numbers(plain: Plain, dtype: str, size: float) -> None:
    k = plain(key="tiny", dtype=dtype, K=128).inputs().k
    assert torch.allclose(
        k.double().norm(dim=-1), torch.tensor(size, dtype=torch.float64), rtol=0.01
    )
    assert float((k.abs() < torch.finfo(k.dtype).tiny).double().mean()) < 0.02


def test_some_rows_of_zero_rows_are_exactly_zero(plain: Plain) -> None:
    x = plain(T=100, key="zero-rows").inputs()
    for tensor in (x.q, x.k):
        assert 0.1 < float((tensor == 0).all(-1).double().mean()) < 0.4


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_one_betas_survive_rounding_below_one(plain: Plain, dtype: str) -> None:
    x = plain(T=100, beta="near-one", dtype=dtype).inputs()
    assert float(x.beta.max()) == 1.0 - torch.finfo(x.beta.dtype).eps / 2
    assert float(x.beta.min()) >= 1.0 - 2.0**-3


def test_mixed_betas_hold_zero_small_ordinary_and_one(plain: Plain) -> None:
    beta = plain(T=100, beta="mixed").inputs().beta
    assert all(
        bool(kind.any())
        for kind in (beta == 0, (beta > 0) & (beta < 2e-3), (beta > 0.1) & (beta < 1), beta == 1)
    )


def test_sparse_betas_write_once_in_each_sequence(plain: Plain) -> None:
    beta = plain(B=1, T=30, lengths=(0, 21, 3), beta="sparse").inputs().beta[0, :, 0]
    assert beta.nonzero().flatten().tolist() == [0, 21]


def test_all_entries_of_an_asymmetric_state_differ(plain: Plain) -> None:
    state = plain(B=2, HV=4, K=64, V=64, state="asymmetric").inputs().initial_state
    assert state is not None
    assert len(state.unique()) == state.numel()


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_values_are_normal_numbers(plain: Plain, dtype: str) -> None:
    v = plain(value="tiny", dtype=dtype).inputs().v
    assert float((v.abs() < torch.finfo(v.dtype).tiny).double().mean()) < 0.01


def test_large_and_tiny_values_are_the_normal_ones_scaled(plain: Plain) -> None:
    normal, large, tiny = (plain(value=name).inputs().v for name in ("normal", "large", "tiny"))
    assert torch.equal(large, normal * 2.0**6)
    assert torch.equal(tiny, normal * 2.0**-20)


def test_powers_of_two_are_powers_of_two_of_both_signs(plain: Plain) -> None:
    v = plain(value="powers-of-two", dtype="bf16").inputs().v
    mantissa = torch.frexp(v.float()).mantissa
    assert set(mantissa.unique().tolist()) == {-0.5, 0.5}
