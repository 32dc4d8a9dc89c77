"""The float64 adjoint's radius holds what goes wrong, is no wider than it must be, and claims a
zero only where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracles import adjoint_error, certified
from oracles.adjoint import adjoint
from oracles.adjoint_error import enclosed_gradients
from oracles.gradients import Cotangents
from oracles.inputs import Inputs

Call = Callable[..., Inputs]
Weigh = Callable[..., Cotangents]

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
CASES: dict[str, dict[str, Any]] = {
    **{
        f"gate {gate}": {"gate": gate}
        for gate in (*GATES, "one-token resets", "first and last reset")
    },
    **{
        f"keys {key}, beta {beta}": {"key": key, "beta": beta, "gate": "slow"}
        for key in ("identical", "zero", "one-hot")
        for beta in ("zero", "two")
    },
    "state absent": {"state": "absent", "gate": "mixture per token"},
    "state large": {"state": "large", "gate": "mixture per token"},
    "three value heads a key head": {"H": 2, "HV": 6, "T": 9},
    "pack with empty sequences and padding": {
        "T": 20,
        "offsets": [0, 0, 3, 3, 11, 17, 17],
        "gate": "mixture per token",
    },
    "pack of nothing but padding": {"T": 3, "offsets": [0, 0]},
    "keys that grow the state": {
        "T": 20,
        "k": torch.ones(1, 20, 1, 6),
        "beta": "two",
        "gate": "zero",
    },
}


@pytest.mark.parametrize("kind", ["of o", "of S_T", "of both"])
@pytest.mark.parametrize("case", CASES)
def test_the_radius_holds_the_certified_gradients_and_their_zeros(
    case: str, kind: str, call: Call, cotangents: Weigh
) -> None:
    inputs = call(**CASES[case])
    weights = cotangents(inputs, kind)
    found, truth = (
        enclosed_gradients(inputs, weights).named(),
        certified.adjoint(inputs, weights, bits=256).named(),
    )
    for name, enclosure in found.items():
        assert bool(enclosure.overlaps(truth[name]).all()), name
        assert torch.equal(enclosure.zero, truth[name].zero), name
        assert not bool(enclosure.radius[enclosure.zero].any())
        assert bool(torch.isfinite(enclosure.radius).all())


def test_the_radius_is_narrow(call: Call, cotangents: Weigh) -> None:
    inputs = call(T=200, K=16, V=16, key="coherent")
    for name, enclosure in enclosed_gradients(inputs, cotangents(inputs)).named().items():
        assert float(enclosure.radius.max() / enclosure.high.abs().max()) < 1e-12, name


@pytest.mark.parametrize("gate", GATES)
def test_the_bound_holds_for_an_adjoint_in_float32(
    gate: str, call: Call, cotangents: Weigh
) -> None:
    """Rounds every step to float32: the bound, scaled to that unit,
    must hold what then really goes wrong.
    """
    inputs = call(T=75, HV=2, gate=gate)
    weights = cotangents(inputs)
    weights = Cotangents(*(x.float() for x in (weights.do, weights.d_final_state) if x is not None))
    rough, wide = (
        adjoint(inputs, weights, dtype=torch.float32).named(),
        enclosed_gradients(inputs, weights).named(),
    )
    for name, enclosure in wide.items():
        gap = (rough[name].double() - enclosure.high).abs()
        assert bool((gap <= 2.0**29 * enclosure.radius + 1e-30).all()), name


def _nothing(*_: Any) -> torch.Tensor:
    return torch.zeros(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("forgotten", ["local", "grow"])
def test_a_bound_that_forgets_a_source_of_error_is_caught(
    forgotten: str, call: Call, cotangents: Weigh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A large state, overwritten channel by channel, and then tokens that only read: what the first
    # part lost stays.
    k = torch.cat((torch.eye(6), torch.zeros(4, 6)))[None, :, None]
    v = torch.randn(1, 10, 1, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    state = torch.full((1, 1, 6, 5), 1e8 / 3, dtype=torch.float64)
    inputs = call(T=10, k=k, v=v, gate="zero", beta="one", initial_state=state, dtype=torch.float64)
    weights = cotangents(inputs, "of o")
    assert bool(
        enclosed_gradients(inputs, weights)
        .gradients.dq.overlaps(certified.adjoint(inputs, weights, bits=256).gradients.dq)
        .all()
    )
    monkeypatch.setattr(adjoint_error, forgotten, _nothing)
    narrow, truth = (
        enclosed_gradients(inputs, weights).gradients.dq,
        certified.adjoint(inputs, weights, bits=256).gradients.dq,
    )
    assert not bool(narrow.overlaps(truth).all())
