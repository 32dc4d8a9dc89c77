"""What a comparison to the bit says, and whose bits it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.checks.bits import BitwiseCall, Relation, exactly, same_bits
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from oracles.inputs import Inputs
from tests.checks.lawbreakers import DENSE, Wrong
from tests.checks.lawbreakers import Call as Kernel

SHAPE = (DENSE.B, DENSE.T, DENSE.HV, DENSE.V)


def reported(found: Tensor, wanted: Tensor) -> Outcome:
    return exactly(
        "o",
        found != wanted,
        found,
        DENSE.inputs(),
        wanted=wanted,
        compared=torch.ones(SHAPE, dtype=torch.bool),
    )


def test_equal_bits_pass_and_say_how_many() -> None:
    same = torch.ones(SHAPE, dtype=torch.float64)
    assert (reported(same, same).status, reported(same, same).message) == (
        Status.PASS,
        "o: exact in all 1008 elements",
    )


def test_the_first_wrong_element_is_reported_with_what_was_wanted() -> None:
    wanted = torch.ones(SHAPE, dtype=torch.float64)
    found = wanted.clone()
    found[1, 2, 3, 4], found[1, 3, 0, 0] = 1.5, 2.5
    outcome = reported(found, wanted)
    assert outcome.status is Status.FAIL
    assert "2 of 1008 elements are not exact" in outcome.message
    assert (
        "sequence 1, token 2 of 21, value head 3, column 4" in outcome.message
        and "got 1.5, wanted 1" in outcome.message
    )


def test_an_element_that_is_no_number_is_reported_before_one_that_is_wrong() -> None:
    wanted = torch.ones(SHAPE, dtype=torch.float64)
    found = wanted.clone()
    found[0, 0, 0, 0], found[1, 2, 3, 4] = 1.5, float("nan")
    outcome = reported(found, wanted)
    assert outcome.status is Status.NONFINITE
    assert "value head 3, column 4" in outcome.message and "got nan, wanted 1" in outcome.message


def test_a_factor_is_part_of_what_is_wanted() -> None:
    def one_wrong(right: Kernel, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final = right(x)
        halved = x.factor < DENSE.inputs().factor
        return (o.index_fill(1, torch.tensor([4]), 7.0) if halved else o), final

    own = DENSE.inputs()
    first = find("eager").forward(own).o[0, 4, 0, 0]
    outcomes = same_bits(
        Wrong(one_wrong),
        DENSE,
        Relation(BitwiseCall(own), BitwiseCall(replace(own, scale=own.factor / 2)), {"o": 0.5}),
    )
    (wrong,) = (outcome for outcome in outcomes if outcome.status.rejects)
    assert wrong.output == "o" and f"got 7, wanted {float(first) / 2:.9g}" in wrong.message
