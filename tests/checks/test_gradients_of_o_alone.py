"""Kernels that return no final state, always or of packs by segment ids: a loss on all outputs is
one on o. Such gradients were skipped, so those of the panel were never judged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import Problem

PROBLEM = Problem(
    B=1,
    T=24,
    H=1,
    HV=1,
    K=8,
    V=8,
    dtype="fp32",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="absent",
    value="normal",
    seed=1,
)
PACK = PROBLEM.replace(lengths=(11, 13))
Fresh = Callable[[Tensor], Tensor]


def _outputs(
    tokens: tuple[Tensor, ...], scale: float, ids: Tensor | None, reset: Fresh
) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = tokens
    state, rows = torch.zeros(len(v), v.shape[2], q.shape[3], v.shape[3]), list[Tensor]()
    for t in range(v.shape[1]):
        if ids is not None and t and bool(ids[0, t] != ids[0, t - 1]):
            state = reset(state)
        state = state * g[:, t].exp()[..., None]
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + k[:, t, ..., None] * (beta[:, t, :, None] * (v[:, t] - read))[:, :, None]
        rows.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(rows, 1), state


def by_ids(reset: Fresh) -> kv.Adapter:
    @kv.kernel(packing="segment_ids")
    def port(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        segment_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return _outputs((q, k, v, g, beta), scale, segment_ids, reset)

    return port


def _statuses(adapter: kv.Adapter, problem: Problem) -> set[Status]:
    return {outcome.status for outcome in gradients(adapter, problem, of="both")}


def test_gradients_of_a_pack_by_segment_ids_are_judged() -> None:
    assert _statuses(by_ids(torch.zeros_like), PACK) == {Status.PASS}


def test_a_gradient_that_flows_into_the_segment_before_is_rejected() -> None:
    assert Status.FAIL in _statuses(by_ids(lambda state: state - state.detach()), PACK)


@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (1.25, Status.FAIL)])
def test_gradients_of_a_kernel_that_returns_o_alone_are_judged(
    factor: float, status: Status
) -> None:
    @kv.kernel(final_state=False)
    def port(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float) -> Tensor:
        steeper = factor * beta + (1 - factor) * beta.detach()
        return _outputs((q, k, v, g, steeper), scale, None, torch.zeros_like)[0]

    assert status in _statuses(port, PROBLEM)
