"""A row of the covering array is diagnosed as the call that it names."""

from __future__ import annotations

import pytest

from kdaverify.adapters.eager import EAGER
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase, as_called, bench
from kdaverify.problems import Problem
from oracles.tensors import GRADIENTS, OUTPUTS

SMALL = Problem.model_validate({
    "B": 1, "T": 5, "H": 1, "HV": 1, "K": 4, "V": 4, "dtype": "fp32", "seed": 0,
    "gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
})  # fmt: skip


@pytest.mark.parametrize(
    ("direction", "name", "detail", "outputs"),
    [
        ("forward", "forward", {}, OUTPUTS),
        ("resume", "resume", {"cut"}, OUTPUTS),
        ("gradients of both", "gradients", {"of"}, GRADIENTS),
    ],
)
def test_it_is_the_call_that_its_direction_names(
    direction: str, name: str, detail: set[str], outputs: tuple[str, ...]
) -> None:
    row = PropertyCase("combined", SMALL, {"direction": direction})
    found = as_called(row, EAGER)
    assert found.property == name and {*found.detail} == {*detail} and name in PROPERTIES
    assert {*bench(row, EAGER).answer(EAGER).outputs} == {*outputs}


def test_another_case_stays_as_it_is() -> None:
    case = PropertyCase("gradients", SMALL, {"of": "both"})
    assert as_called(case, EAGER) is case
