"""Losses of one call share the forwards of its reference kernels; each has the tolerance that it
has when it is judged alone.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from kdaverify.budgets.attention import reference
from kdaverify.budgets.attention.ensemble import ReferenceKernel
from kdaverify.budgets.attention.forwards import LatestForwards
from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.attention.adapter import ATTENTION as ADAPTER
from kdaverify.operators.attention.dense import ATTENTION
from kdaverify.operators.attention.problem import AttentionProblem

BATCH: Final = AttentionProblem(
    B=2, s_q=5, s_k=70, H=4, h_kv=2, dtype="bf16", causal=True, sink="level"
)
PACK: Final = BATCH.replace(B=1, q_lengths=(3, 0, 2), k_lengths=(9, 2, 59), sink=None)


def allowed(problem: AttentionProblem, of: str) -> dict[str, torch.Tensor]:
    """The largest error that each element may have."""
    call, io = problem.inputs(), FORMATS[problem.dtype]
    loss = ATTENTION.loss(problem, ("o", "lse"), of, 0)
    contract: Any = ADAPTER.contract(problem.dtype)
    found = ATTENTION.gradient_reference(call, ATTENTION.cotangents(loss), contract, io)
    return {name: torch.as_tensor(x.allowed.rows) for name, x in found.budgets.items()}


@pytest.mark.parametrize("problem", [BATCH, PACK], ids=("batch", "pack"))
def test_a_loss_has_the_tolerance_that_it_has_alone(
    problem: AttentionProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "LATEST", LatestForwards())
    together = {of: allowed(problem, of) for of in ("both", "o", "lse")}
    for of, found in together.items():
        monkeypatch.setattr(reference, "LATEST", LatestForwards())
        alone = allowed(problem, of)
        assert found.keys() == alone.keys()
        assert all(torch.equal(x, alone[name]) for name, x in found.items())


def test_forwards_are_made_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made, right = list[Any](), ReferenceKernel.forward

    def forward(self: ReferenceKernel, segment: Any) -> Any:
        made.append(segment)
        return right(self, segment)

    monkeypatch.setattr(ReferenceKernel, "forward", forward)
    monkeypatch.setattr(reference, "LATEST", LatestForwards())
    allowed(BATCH, "both")
    count = len(made)
    allowed(BATCH, "lse")
    assert len(made) == count > 0
    for other in (BATCH.replace(seed=7), BATCH.replace(scale="small"), BATCH.replace(sink=None)):
        allowed(other, "both")
        assert len(made) > count
        count = len(made)
