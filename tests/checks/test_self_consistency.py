"""A backward that is not the derivative of its own forward is rejected, by the name of its input;
one of a wrong forward passes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.checks.forward import forward
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.self_consistency import self_consistency
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.problems.directions import pair
from oracles.chunk_backward import BACKWARD
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS
from tests.checks.backwards import Changed, Staged, detached
from tests.oracles.test_backward_stages import FAULTS

DENSE = Problem(
    B=1,
    T=12,
    H=1,
    HV=2,
    K=5,
    V=4,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
PACKED = DENSE.replace(T=14, lengths=(0, 8, 5), gate="slow", key="coherent-0.9")


def judged(adapter: Adapter, problem: Problem = DENSE) -> Outcome:
    (outcome,) = self_consistency(adapter, problem)
    return outcome


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "problem",
    [DENSE, PACKED, PACKED.replace(gate="mixed", beta="mixed")],
    ids=["dense", "packed", "mixed"],
)
def test_conforming_kernels_pass(dtype: str, problem: Problem) -> None:
    tested = problem.replace(dtype=dtype)
    assert judged(find("eager"), tested).status is Status.PASS
    assert judged(Staged(dtype=dtype), tested).status is Status.PASS


CAUGHT = (
    "state gradient without -w^T dv",
    "dg without the chunk-end term",
    "dk of one value head only",
    "dbeta without the keys of w",
)


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_planted_fault_is_rejected_and_an_input_that_it_hits_named(fault: str) -> None:
    stage, wrong, hit = FAULTS[fault]
    reported = judged(Staged(replace(BACKWARD, **{stage: wrong}), dtype="fp32"), PACKED)
    assert reported.status is Status.FAIL
    assert reported.message.rpartition("over tolerance: ")[2].split(" (")[0] in hit


@pytest.mark.parametrize("name", ["dq", "dbeta", "d_initial_state"])
def test_a_gradient_off_by_one_in_a_hundred_is_rejected_by_its_name(name: str) -> None:
    wrong = Staged(
        change=lambda found: replace(found, **{name: 1.01 * getattr(found, name)}), dtype="fp32"
    )
    reported = judged(wrong, PACKED)
    assert reported.status is Status.FAIL and f"over tolerance: {name} (" in reported.message


def _normalised(given: Cotangents) -> Cotangents:
    dS = given.d_final_state
    return given if dS is None else replace(given, d_final_state=dS / dS.abs().max())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_backward_that_ignores_the_size_of_the_state_s_cotangent_is_rejected(dtype: str) -> None:
    assert (
        judged(Staged(given=_normalised, dtype=dtype), DENSE.replace(dtype=dtype)).status
        is Status.FAIL
    )


def test_a_rounding_that_the_backward_takes_for_the_identity_is_rejected() -> None:
    def through(y: Tensor) -> Tensor:
        return y + (y.bfloat16().to(y.dtype) - y).detach()

    assert judged(Changed(lambda y: Output(through(y.o), y.final_state))).status is Status.FAIL


def test_a_wrong_forward_with_its_own_derivative_is_consistent_and_fails_elsewhere() -> None:
    wrong = Changed(inputs=lambda x: replace(x, beta=0.9 * x.beta))
    assert judged(wrong).status is Status.PASS
    assert all(outcome.status is Status.FAIL for outcome in forward(wrong, DENSE))


def test_what_is_not_finite_is_rejected_as_such() -> None:
    def lost(found: Gradients[Tensor]) -> Gradients[Tensor]:
        return replace(found, dk=found.dk * torch.nan)

    assert judged(Staged(change=lost, dtype="fp32")).status is Status.NONFINITE


def test_forward_only_kernels_and_float64_are_skipped_with_a_reason() -> None:
    assert judged(Changed(detached)).message.startswith("forward only")
    assert "gradcheck" in judged(find("eager"), DENSE.replace(dtype="fp64")).message


MOVED = PACKED.replace(gate="mixed", beta="mixed", dtype="bf16")


def test_moved_calls_stay_in_their_domain_and_resets_stay_resets() -> None:
    x, moved = MOVED.inputs(), pair(MOVED, 0, 0.1)
    assert bool((moved.up.g <= 0).all()) and bool((moved.down.g <= 0).all())
    assert torch.equal(moved.up.g.isneginf(), x.g.isneginf()) and torch.equal(
        moved.down.g.isneginf(), x.g.isneginf()
    )
    at_zero = (moved.up.g.double() - moved.down.g)[x.g == 0]
    assert bool((at_zero.abs() > 0.05).all()) and bool((at_zero.abs() < 0.15).all())
    for end in (moved.up, moved.down):
        assert float(x.beta.min()) <= float(end.beta.min()) and float(end.beta.max()) <= float(
            x.beta.max()
        )


@pytest.mark.parametrize("name", GRADIENTS.values())
def test_all_inputs_move_both_ways_by_about_the_step_in_numbers_of_their_own_type(
    name: str,
) -> None:
    problem = MOVED.replace(gate="log-sigmoid", beta="uniform")
    x, both = getattr(problem.inputs(), name), pair(problem, 1, 0.1)
    along = getattr(both.up, name).double() - getattr(both.down, name)
    size = 1.0 if name == "g" else float(x.double().square().mean().sqrt())
    assert 0.8 < float(along.abs().max()) / (0.2 * size) < 1.3
    assert 0.2 < float((along > 0).double().mean()) < 0.8


def test_directions_follow_from_the_seed_and_their_number() -> None:
    first, again, other = pair(MOVED, 0, 0.1), pair(MOVED, 0, 0.1), pair(MOVED, 1, 0.1)
    assert torch.equal(first.up.q, again.up.q) and not torch.equal(first.up.q, other.up.q)
    alone: Inputs = pair(MOVED, 0, 0.1, ["k"]).up
    assert torch.equal(alone.k, first.up.k) and torch.equal(alone.q, MOVED.inputs().q)
