"""What zeros, the negated or a shuffled output would pass is reported as inconclusive; right zeros
are evidence.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import standard
from kdaverify.checks.compare import Comparison, compare
from kdaverify.checks.negative_controls import negative_controls
from kdaverify.problems import Problem

PROBLEM = Problem(
    B=1,
    T=20,
    H=1,
    HV=2,
    K=8,
    V=8,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
CONTRACT, BF16 = contract_from_name("chunk64-bf16"), FORMATS["bf16"]
NOWHERE = torch.zeros(4, 3, dtype=torch.bool)


def within(allowed: float) -> Callable[[Tensor], bool]:
    return lambda error: float(error.abs().max()) <= allowed


def judged(problem: Problem, name: str) -> Comparison:
    inputs = problem.inputs()
    held = standard(inputs, CONTRACT, BF16, emulate(inputs, CONTRACT, BF16))
    o, final = ensemble(CONTRACT, BF16)[0].run(inputs)
    return compare(name, o if name == "o" else final, held, inputs)


@pytest.mark.parametrize("name", ["o", "final_state"])
def test_an_ordinary_case_rejects_every_negative_control(name: str) -> None:
    assert judged(PROBLEM, name).vacuous == ()


def test_every_negative_control_within_a_wide_tolerance_is_reported() -> None:
    exact = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).repeat(4, 1) * torch.tensor(
        [[1.0], [1.1], [1.2], [1.3]]
    )
    assert negative_controls(exact, NOWHERE, within(1.0)) == ("shuffled",)
    assert negative_controls(exact, NOWHERE, within(4.0)) == ("zeros", "shuffled")
    assert negative_controls(exact, NOWHERE, within(8.0)) == ("zeros", "negated", "shuffled")
    assert negative_controls(exact, NOWHERE, within(0.01)) == ()


def test_rows_are_shuffled_over_all_axes_but_the_last() -> None:
    exact = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]], dtype=torch.float64)
    assert negative_controls(exact, torch.zeros_like(exact, dtype=torch.bool), within(3.0)) == (
        "shuffled",
    )
    assert negative_controls(exact.flatten(), torch.zeros(4, dtype=torch.bool), within(3.0)) == (
        "shuffled",
    )


def test_an_output_that_is_zero_has_no_negative_control_and_demands_zeros() -> None:
    comparison = judged(PROBLEM.replace(beta="zero", state="absent"), "o")
    assert comparison.vacuous == () and comparison.exact == 0
    assert negative_controls(torch.zeros(4, 3, dtype=torch.float64), ~NOWHERE, within(1.0)) == ()


def test_a_lost_zero_refuses_a_shuffled_output_however_wide_the_budget() -> None:
    exact = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    assert negative_controls(exact, exact == 0, within(0.1)) == ()
    assert "shuffled" not in negative_controls(exact, exact == 0, within(9.0))


def test_rows_that_are_alike_cannot_be_reported_apart_and_need_not() -> None:
    assert negative_controls(torch.ones(4, 3, dtype=torch.float64), NOWHERE, within(0.5)) == ()


def test_nothing_is_proven_of_no_elements() -> None:
    assert negative_controls(
        torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool), within(1.0)
    ) == ("empty",)


def test_the_rms_decides_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for what the kernel returned:
    no negative control of an ordinary case costs more than its rms.
    """
    measured: list[Tensor] = []
    real = Budget.measure

    def counting(self: Budget, error: Tensor, truth: object) -> object:
        measured.append(error)
        return real(self, error, truth)  # pyright: ignore[reportArgumentType]

    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16, emulate(inputs, CONTRACT, BF16))
    monkeypatch.setattr(Budget, "measure", counting)
    compare("o", ensemble(CONTRACT, BF16)[0].run(inputs)[0], held, inputs)
    assert len(measured) == 1
