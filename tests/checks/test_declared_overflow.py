"""Which outputs are judged where kernels of the declared chunk size overflow: those that all of
them keep finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from kdaverify.adapters.emulated import TRITON_NPU_GDN, Emulated
from kdaverify.budgets.scalar_decay import BACKWARD, wy_bwd
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.chunk_backward import ChunkGradients
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

# What passes the state's large values through the inverse overflows fp16 where tokens overwrite
# one another: V = 64 in chunks of 64, not of 32 and 16; V = 32 in none.
PROBLEM: Final[Mapping[str, Any]] = {
    "B": 1,
    "T": 130,
    "H": 1,
    "HV": 2,
    "K": 1,
    "dtype": "fp16",
    "gates": "head",
    "gate": "zero",
    "key": "random",
    "beta": "two",
    "state": "large",
    "value": "normal",
    "seed": 18188,
}
BEYOND: Final = {"dk", "dg", "dbeta"}
FITTING: Final = {"dq", "dv", "d_initial_state"}


def statuses(adapter: Emulated, columns: int) -> dict[str, Status]:
    problem = Problem(**PROBLEM, V=columns)
    return {x.output: x.status for x in gradients(adapter, problem, of="both")}


def of(status: Status, found: Mapping[str, Status]) -> set[str]:
    return {name for name, one in found.items() if one is status}


@pytest.mark.parametrize(("columns", "judged"), [(32, FITTING | BEYOND), (64, FITTING)])
def test_what_overflows_in_the_declared_chunks_is_not_judged_though_smaller_ones_keep_it_finite(
    columns: int, judged: set[str]
) -> None:
    found = statuses(TRITON_NPU_GDN, columns)
    assert of(Status.PASS, found) == judged
    assert of(Status.SKIP, found) == (FITTING | BEYOND) - judged


def test_a_wrong_gradient_beside_those_is_rejected() -> None:
    assert of(Status.FAIL, statuses(Halved("triton_npu_gdn"), 64)) == {"dv"}


def test_a_kernel_that_overflows_where_no_reference_kernel_does_is_rejected() -> None:
    assert of(Status.NONFINITE, statuses(Magnified("triton_npu_gdn"), 32)) == BEYOND


class Halved(Emulated):
    """Returns half of dv."""

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[torch.Tensor]:
        found = super().gradients(inputs, cotangents)
        return replace(found, dv=found.dv / 2)


class Magnified(Emulated):
    """Stores a tensor 64 times too large, and divides when it is read: right, but for overflow."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._design = replace(self._design, backward=replace(BACKWARD, wy_bwd=_magnified))


def _magnified(b: ChunkGradients) -> None:
    arithmetic = b.c.arithmetic

    def store(name: str, x: torch.Tensor) -> torch.Tensor:
        factor = 64.0 if name == "R_dR" else 1.0
        return arithmetic.store(name, x * factor) / factor

    b.c.arithmetic = replace(arithmetic, store=store)
    wy_bwd(b)
    b.c.arithmetic = arithmetic
