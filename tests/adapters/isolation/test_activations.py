"""Operations beside a kernel in a worker process: what they give, what they edit and how they die
are what they would be here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from kdaverify.operators.pointwise.call import ActivationArguments, torch_activations
from kdaverify.operators.pointwise.cases import activation_panel
from kdaverify.operators.pointwise.check import activations
from oracles.pointwise.operations import OPERATIONS
from tests.operators.pointwise.activated import Activated


def _edits(x: ActivationArguments) -> Any:
    x.tensors["A_log"].zero_()
    return torch_activations()["gate_softplus"].forward(x)


def _dies(x: ActivationArguments) -> Any:
    os._exit(3)


def _gives_none(x: ActivationArguments) -> Any:
    return None


OWN = torch_activations()
RIGHT = Activated("right")
WRONG = Activated(
    "wrong",
    gate_softplus=replace(OWN["gate_softplus"], forward=_edits),
    gate_bounded=replace(OWN["gate_bounded"], forward=_gives_none),
    beta_sigmoid=replace(OWN["beta_sigmoid"], backward=_dies),
)


def test_an_operation_gives_there_what_it_gives_here(isolated: Any) -> None:
    adapter = isolated("RIGHT")
    for op in OPERATIONS:
        tested = activation_panel("mixed", op, "bf16")  # pyright: ignore[reportArgumentType]
        here, there = (activations(which, tested) for which in (RIGHT, adapter))
        assert [(outcome.output, outcome.message) for outcome in here] == [
            (outcome.output, outcome.message) for outcome in there
        ]


def test_what_goes_wrong_there_is_reported_here(isolated: Any) -> None:
    adapter = isolated("WRONG")
    wanted: dict[Any, Any] = {
        "gate_softplus": ("call", "MUTATED_INPUT"),
        "gate_bounded": ("g", "MISSING"),
        "beta_sigmoid": ("call", "CRASH"),
        "l2norm": None,
    }
    for op, reported in wanted.items():
        found = activations(adapter, activation_panel("usual", op, "fp32"))
        assert [
            (outcome.output, outcome.status) for outcome in found if outcome.status.rejects
        ] == ([reported] if reported else [])
