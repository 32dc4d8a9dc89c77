"""Gradients of calls past a fixed number of chunks: a backward that keeps states in a ring is right
in every shorter call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.operators.kda.axes import AXES
from kdaverify.problems import Problem
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

CHUNK: Final = 32
RING: Final = 64


def kept_in_a_ring(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """The first chunks are differentiated with states of later ones, which took their slots."""
    found = Derived().gradients(x, given)
    lost = max(0, x.T - RING * CHUNK)
    dk = found.dk.clone()
    dk[:, :lost] = dk[:, :lost].roll(1, dims=-1)
    return replace(found, dk=dk)


RINGED: Final = Derived(kept_in_a_ring)


def tested() -> dict[str, Problem]:
    """The problems of smoke whose gradients are tested, in bf16."""
    return {
        name: problem
        for name, problem in AXES["named_backward"](RINGED, "smoke")
        if problem.dtype == "bf16"
    }


def test_one_problem_of_smoke_is_longer_than_a_ring() -> None:
    found = {name for name, problem in tested().items() if problem.T > RING * CHUNK}
    assert found == {"bf16-past-2048-tokens"}


@pytest.mark.parametrize(("adapter", "rejects"), [(RINGED, True), (Derived(), False)])
def test_states_in_a_ring_are_found(adapter: Derived, rejects: bool) -> None:
    found = gradients(adapter, tested()["bf16-past-2048-tokens"], of="both")
    assert {outcome.output for outcome in found if outcome.status is not Status.PASS} == (
        {"dk"} if rejects else set()
    )
