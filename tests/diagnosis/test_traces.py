"""What part of an output is wrong is said in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.diagnosis.answer import Answer
from kdaverify.diagnosis.traces import traces
from kdaverify.diagnosis.yardstick import Scale
from kdaverify.problems import Problem
from tests.faults.triggers import PLAIN

Edit = Callable[[Tensor], Any]
DENSE = Problem.model_validate({**PLAIN, "T": 70})
PACK = Problem.model_validate({**PLAIN, "T": 84, "lengths": (70, 5, 0, 4)})


def said(problem: Problem, output: str, edit: Edit) -> str:
    shape = (problem.B, problem.T, problem.HV, problem.V) if output == "o" else (problem.N, problem.HV, problem.K, problem.V)
    exact = torch.ones(shape, dtype=torch.float64)
    wrong = exact.clone()
    edit(wrong)
    return traces(Answer({output: wrong}), {output: Scale(exact, 1e-3, 1e-3)}, problem, 64)


@pytest.mark.parametrize(
    ("problem", "output", "edit", "told"),
    [
        (DENSE, "o", lambda o: o[:, 65:].fill_(2), "o: only in the last, partial chunk"),
        (DENSE, "o", lambda o: o[:, 30:].fill_(0), "o: 0 wherever it is wrong, only from token 30 on"),
        (DENSE, "o", lambda o: o[:, 0].fill_(2), "o: only at the first token"),
        (DENSE, "o", lambda o: o[:, :, 1].fill_(2), "o: only in head 1 of 2"),
        (DENSE, "o", lambda o: o[..., 8:].fill_(2), "o: only in channels 8 to 11 of 12"),
        (DENSE, "o", lambda o: o.fill_(2), ""),
        (DENSE, "o", lambda o: o, ""),
        (PACK, "o", lambda o: o[:, 70:75].fill_(2), "o: only in sequence 1 of 4"),
        (PACK, "o", lambda o: o[:, 79:].fill_(2), "o: only past the last offset"),
        (PACK, "final_state", lambda s: s[2].fill_(torch.nan), "final_state: only in sequence 2 of 4"),
        (PACK, "final_state", lambda s: s[..., 4:, :].fill_(2), "final_state: only in rows 4 to 7 of 8"),
    ],
)
def test_it_says_where(problem: Problem, output: str, edit: Edit, told: str) -> None:
    assert said(problem, output, edit) == told
