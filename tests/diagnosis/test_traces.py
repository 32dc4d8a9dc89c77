"""What part of an output is wrong is said in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import Scale
from kdaverify.diagnosis.traces import traces
from kdaverify.problems import Problem
from tests.faults.triggers import PLAIN

EVERY = slice(None)
DENSE = Problem.model_validate({**PLAIN, "T": 70})
PACK = Problem.model_validate({**PLAIN, "T": 84, "lengths": (70, 5, 0, 4)})


def said(problem: Problem, output: str, part: tuple[Any, ...], value: float) -> str:
    shape = (
        (problem.B, problem.T, problem.HV, problem.V)
        if output == "o"
        else (problem.N, problem.HV, problem.K, problem.V)
    )
    exact = torch.ones(shape, dtype=torch.float64)
    wrong = exact.clone()
    wrong[part] = value
    return traces(KernelErrors({output: wrong}), {output: Scale(exact, 1e-3, 1e-3)}, problem, 64)


@pytest.mark.parametrize(
    ("problem", "output", "part", "value", "reported"),
    [
        (DENSE, "o", (EVERY, slice(65, None)), 2, "o: only in the last, partial chunk"),
        (
            DENSE,
            "o",
            (EVERY, slice(30, None)),
            0,
            "o: 0 wherever it is wrong, only from token 30 on",
        ),
        (DENSE, "o", (EVERY, 0), 2, "o: only at the first token"),
        (DENSE, "o", (EVERY, EVERY, 1), 2, "o: only in head 1 of 2"),
        (DENSE, "o", (..., slice(8, None)), 2, "o: only in channels 8 to 11 of 12"),
        (DENSE, "o", (), 2, ""),
        (DENSE, "o", (), 1, ""),
        (PACK, "o", (EVERY, slice(70, 75)), 2, "o: only in sequence 1 of 4"),
        (PACK, "o", (EVERY, slice(79, None)), 2, "o: only past the last offset"),
        (PACK, "final_state", (2,), float("nan"), "final_state: only in sequence 2 of 4"),
        (
            PACK,
            "final_state",
            (..., slice(4, None), EVERY),
            2,
            "final_state: only in rows 4 to 7 of 8",
        ),
    ],
)
def test_it_says_where(
    problem: Problem, output: str, part: tuple[Any, ...], value: float, reported: str
) -> None:
    assert said(problem, output, part, value) == reported
