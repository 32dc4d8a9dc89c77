"""Gates of a head are those of KDA with the same number in every channel; without gates nothing
decays. Every oracle agrees on that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.problems import Domain, Problem
from kdaverify.problems.axes import Gates
from kdaverify.problems.cotangents import cotangents
from oracles.adjoint import adjoint, adjoint_with_terms
from oracles.adjoint_error import enclosed_gradients
from oracles.certified import certify, certify_gradients
from oracles.chunk import chunk
from oracles.chunk_backward import chunk_backward
from oracles.inputs import InputError, Inputs
from oracles.recurrence import recurrence

PLAIN = Problem(
    B=1,
    T=19,
    H=1,
    HV=2,
    K=4,
    V=3,
    dtype="fp32",
    gate="mixed",
    key="coherent-0.6",
    beta="uniform",
    state="random",
    value="normal",
    lengths=(7, 0, 11),
    seed=2,
)
GATES: tuple[Gates, ...] = ("head", "none")


def problem(gates: Gates, **changes: object) -> Problem:
    return Domain(gates=gates).fit(PLAIN.replace(**changes))


def expanded(x: Inputs) -> Inputs:
    """The same call with a gate of every channel."""
    return replace(x, g=x.decays.contiguous())


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("gate", ["log-sigmoid", "mixed", "one-token-hard-reset"])
def test_outputs_are_those_of_kda_with_that_gate_in_every_channel(gates: Gates, gate: str) -> None:
    x = problem(gates, gate=gate).inputs()
    assert {"head": 1, "none": 0}[gates] == x.KG
    for found, wanted in zip(recurrence(x), recurrence(expanded(x)), strict=True):
        assert torch.equal(found, wanted)
    for found, wanted in zip(chunk(x, chunk_size=4), recurrence(x), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    certified = certify(x, accept=lambda _: True)
    assert bool((certified.o.error(recurrence(x)[0]).abs() <= 1e-12).all())


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("gate", ["log-sigmoid", "mixed"])
def test_gradients_are_summed_over_the_channels_that_share_a_gate(gates: Gates, gate: str) -> None:
    tested = problem(gates, gate=gate)
    x, loss = tested.inputs(), cotangents(tested, "both")
    whole, whole_terms = adjoint_with_terms(expanded(x), loss)
    found, terms = adjoint_with_terms(x, loss)
    wanted = {"head": whole.dg.sum(-1, keepdim=True), "none": whole.dg[..., :0]}[gates]
    assert torch.allclose(found.dg, wanted, rtol=1e-12, atol=1e-14) and found.dg.shape == x.g.shape
    assert torch.allclose(terms.dg, whole_terms.dg.sum(-1, keepdim=True)[..., : x.KG])
    for name, dx in found.named().items():
        assert name == "dg" or torch.equal(dx, whole.named()[name])
    in_chunks = chunk_backward(x, loss, chunk_size=4)
    assert all(
        torch.allclose(dx, found.named()[name], rtol=1e-9, atol=1e-11)
        for name, dx in in_chunks.named().items()
    )


@pytest.mark.parametrize("gates", GATES)
def test_the_radius_of_float64_covers_the_certified_gradients(gates: Gates) -> None:
    tested = problem(gates, gate="log-sigmoid")
    x, loss = tested.inputs(), cotangents(tested, "both")
    enclosed, certified = (
        enclosed_gradients(x, loss).named(),
        certify_gradients(x, loss, accept=lambda _: True).named(),
    )
    for name, exact in certified.items():
        assert exact.high.shape == enclosed[name].high.shape
        assert bool(
            (exact.error(enclosed[name].high).abs() <= enclosed[name].radius + exact.radius).all()
        ), name
    if gates == "head":
        assert bool((certified["dg"].high - adjoint(x, loss).dg).abs().max() < 1e-12)


def test_a_number_of_gates_that_is_neither_is_refused() -> None:
    x = problem("head").inputs()
    with pytest.raises(
        InputError,
        match=(
            r"g: wanted \[B, T, HV, K\], or K gates of a head replaced by 1 or 0, got \[1, 19,"
            r" 2, 2\]"
        ),
    ):
        replace(x, g=x.g.expand(1, 19, 2, 2))
