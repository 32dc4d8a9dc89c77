"""A wrong row of the Jacobian is rejected and named; conforming kernels have right ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.checks.jacobian import MOST_ROWS, jacobian, rows
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.chunk_backward import BACKWARD
from oracles.gradients import Gradients
from tests.checks.backwards import Changed, Staged, detached
from tests.oracles.test_backward_stages import FAULTS

DENSE = Problem(
    B=1,
    T=4,
    H=1,
    HV=1,
    K=3,
    V=3,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=5,
)
PACKED = DENSE.replace(T=5, lengths=(3, 0, 1), V=1, gate="mixed")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("problem", [DENSE, PACKED], ids=["dense", "packed"])
def test_conforming_kernels_pass(dtype: str, problem: Problem) -> None:
    for adapter in (find("eager"), Staged(dtype=dtype)):
        assert {outcome.status for outcome in jacobian(adapter, problem.replace(dtype=dtype))} == {
            Status.PASS
        }


def test_rows_are_counted() -> None:
    assert (rows(DENSE), rows(PACKED)) == (21, 13)
    (outcome,) = jacobian(find("eager"), DENSE.replace(V=4, B=2))
    assert outcome.status is Status.SKIP and f"at most {MOST_ROWS}" in outcome.message


@pytest.mark.parametrize("problem", [DENSE, PACKED], ids=["dense", "packed"])
def test_rows_shifted_by_a_token_are_rejected_where_they_are(problem: Problem) -> None:
    def shifted(found: Gradients[Tensor]) -> Gradients[Tensor]:
        return replace(found, dv=found.dv.roll(1, dims=1))

    found = {
        outcome.output: outcome
        for outcome in jacobian(Staged(change=shifted), problem)
        if outcome.status.rejects
    }
    assert set(found) == {"dv"}
    assert (
        "in the row of" in found["dv"].message and f"of {rows(problem)} rows" in found["dv"].message
    )


@pytest.mark.parametrize(
    "fault",
    ["dg without the chunk-end term", "dbeta without the keys of w", "pairs (i, i) forgotten"],
)
def test_a_planted_fault_is_rejected_in_a_tensor_that_it_hits(fault: str) -> None:
    stage, wrong, hit = FAULTS[fault]
    found = jacobian(Staged(replace(BACKWARD, **{stage: wrong})), DENSE)
    reported = {outcome.output for outcome in found if outcome.status.rejects}
    assert reported and reported <= {*hit}


def test_forward_only_kernels_are_skipped_with_that_reason() -> None:
    (outcome,) = jacobian(Changed(detached), DENSE.replace(dtype="fp32"))
    assert outcome.status is Status.SKIP and outcome.message.startswith("forward only")
