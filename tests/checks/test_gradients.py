"""Wrong derivatives are rejected, tensor by tensor, within a 16-bit contract; right ones pass, and
kernels without a backward say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters import find
from kdaverify.adapters.base import Output
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.autograd import FORWARD_ONLY, NO_GRAPH
from oracles.chunk_backward import BACKWARD
from oracles.gradients import Gradients
from oracles.tensors import GRADIENTS
from tests.checks.backwards import Changed, Staged, detached
from tests.oracles.test_backward_stages import FAULTS

_PLAIN = Problem(
    B=1,
    T=80,
    H=1,
    HV=2,
    K=16,
    V=24,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)
PROBLEMS = (_PLAIN, _PLAIN.replace(T=80, lengths=(0, 37, 33), gate="slow", key="coherent-0.9"))


def rejected(adapter: kv.Adapter) -> set[str]:
    """The gradients that one of the problems rejects."""
    found = [outcome for problem in PROBLEMS for outcome in gradients(adapter, problem, of="both")]
    assert all(outcome.status in (Status.PASS, Status.FAIL, Status.NONFINITE) for outcome in found)
    return {outcome.output for outcome in found if outcome.status.rejects}


def test_the_backward_of_the_contract_passes() -> None:
    assert rejected(Staged(BACKWARD)) == set()


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
@pytest.mark.parametrize("of", ["both", "o", "final_state"])
def test_autograd_passes_in_every_format(name: str, of: str) -> None:
    adapter = find(name)
    for dtype in adapter.dtypes:
        problem = PROBLEMS[1].replace(dtype=dtype, K=8, V=8)
        assert {outcome.status for outcome in gradients(adapter, problem, of=of)} == {Status.PASS}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_rejected_in_a_tensor_that_it_hits(fault: str) -> None:
    stage, wrong, hit = FAULTS[fault]
    reported = rejected(Staged(replace(BACKWARD, **{stage: wrong})))
    named = {"d_initial_state" if name == "dS_0" else name for name in hit}
    assert reported and reported <= named


def _leaking(found: Gradients[Tensor]) -> Gradients[Tensor]:
    dv = found.dv.clone()
    dv[:, -1] += 1e-30  # what lies past the last offset
    return replace(found, dv=dv)


def test_a_gradient_on_padding_is_rejected_however_small() -> None:
    packed = PROBLEMS[1]
    found = {
        outcome.output: outcome for outcome in gradients(Staged(BACKWARD, _leaking), packed, of="o")
    }
    assert found["dv"].status is Status.FAIL and "padding row" in found["dv"].message
    assert all(outcome.status is Status.PASS for name, outcome in found.items() if name != "dv")


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_off_by_a_twentieth_is_rejected(name: str) -> None:
    wrong = Staged(BACKWARD, lambda found: replace(found, **{name: 1.05 * getattr(found, name)}))
    assert rejected(wrong) == {name}


def test_gradients_of_the_wrong_sign_or_of_nothing_are_all_rejected() -> None:
    for factor in (0.0, -1.0):
        wrong = Staged(
            BACKWARD,
            lambda found, by=factor: Gradients(
                **{name: by * x for name, x in found.named().items()}
            ),
        )
        assert rejected(wrong) == {*GRADIENTS}


def test_a_state_that_comes_back_detached_has_wrong_gradients() -> None:
    adapter = Changed(lambda output: replace(output, final_state=output.final_state.detach()))
    problem = PROBLEMS[1].replace(dtype="fp32")
    assert all(
        outcome.status.rejects
        for outcome in gradients(adapter, problem, of="final_state")
        if outcome.output != "dq"
    )
    assert all(outcome.status is Status.PASS for outcome in gradients(adapter, problem, of="o"))


def test_a_kernel_without_a_graph_is_forward_only_and_skipped() -> None:
    adapter = Changed(detached)
    (outcome,) = gradients(adapter, PROBLEMS[0].replace(dtype="fp32"), of="both")
    assert (outcome.status, outcome.message) == (
        Status.SKIP,
        "forward only: no output carries a gradient graph of torch",
    )


def test_a_kernel_that_leaves_torch_is_forward_only() -> None:
    adapter = Changed(lambda output: Output(torch.from_numpy(output.o.numpy()), output.final_state))
    (outcome,) = gradients(adapter, PROBLEMS[0].replace(dtype="fp32"), of="both")
    assert outcome.status is Status.SKIP and outcome.message.startswith(
        "forward only: it leaves torch"
    )


def test_gradients_that_ball_arithmetic_would_take_hours_for_are_uncertified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdaverify.budgets.gradient_standard.LONGEST", 0.0)
    (found,) = gradients(find("eager"), _PLAIN.replace(dtype="fp32"), of="o")
    assert (
        found.status is Status.ORACLE_UNCERTIFIED
        and "minutes; test a shorter problem" in found.message
    )
    # Where float64 is accurate enough nothing is refused.
    assert {
        outcome.status for outcome in gradients(find("eager"), _PLAIN.replace(dtype="bf16"), of="o")
    } == {Status.PASS}


def _port(recorded: Callable[[Tensor], bool]) -> kv.Adapter:
    """Token by token, whose outputs have a graph where `recorded` says so of v."""

    @kv.kernel(name="sometimes recorded", dtypes="fp32")
    def port(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if not recorded(v):
            q, k, v, g, beta = (x.detach() for x in (q, k, v, g, beta))
            initial_state = None if initial_state is None else initial_state.detach()
        groups = v.shape[2] // q.shape[2]
        q, k = (x.repeat_interleave(groups, 2) for x in (q, k))
        first = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])
        state, o = first if initial_state is None else initial_state, list[Tensor]()
        for t in range(v.shape[1]):
            state = g[:, t, :, :, None].exp() * state
            u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + k[:, t, :, :, None] * u[:, :, None]
            o.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return torch.stack(o, 1), state

    return port


TOKEN = _PLAIN.replace(T=1, dtype="fp32")


def test_a_call_without_a_graph_has_gradients_of_zero_where_others_have_one() -> None:
    found = gradients(_port(lambda v: v.shape[1] > 1), TOKEN, of="both")
    wrong = {outcome.output for outcome in found if outcome.status is Status.FAIL}
    assert wrong == {"dq", "dk", "dv", "dg", "dbeta", "d_initial_state"}
    assert all(NO_GRAPH in outcome.message for outcome in found)
    assert all(
        outcome.status is Status.PASS
        for outcome in gradients(_port(lambda _: True), TOKEN, of="both")
    )


def test_a_kernel_without_any_graph_has_no_gradients() -> None:
    (outcome,) = gradients(_port(lambda _: False), TOKEN, of="both")
    assert (outcome.status, outcome.message) == (Status.SKIP, FORWARD_ONLY + NO_GRAPH)
