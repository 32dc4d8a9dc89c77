"""Gradients of A_log and dt_bias are those of all tokens, entries and channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.gate_parameters import GatedKernel, gated, twin
from kdaverify.operators.kda.not_applicable import outside

RULE: Final = "gate-parameters-backward"
WRONG: Final = {
    "PARAM1": ["ddt_bias"],
    "PARAM2": ["dA_log"],
    "PARAM3": ["ddt_bias"],
    "PARAM4": ["dA_log"],
}


def outcomes(adapter: Adapter) -> list[Outcome]:
    return [
        outcome
        for one in questions(adapter, "smoke")
        if one.rule.name == RULE
        for outcome in check("calls", adapter, one.problem, one.detail)
    ]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_left_out_is_rejected_in_every_format(name: str) -> None:
    found = outcomes(PLANTED[name].adapter())
    wrong = [outcome.output for outcome in found if outcome.status.rejects]
    assert wrong == WRONG[name] * 2
    assert "of the sum over tokens of the kernel's own dg" in found[0].message


def bounded(change: Any = None) -> Adapter:
    """A gate a head, between -4 and 0, heads by their place in the groups."""

    def function(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float,
        initial_state: Tensor, cu_seqlens: Tensor, A_log: Tensor, dt_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        bias = dt_bias if change is None else change(dt_bias)
        gates = -4.0 * torch.sigmoid(A_log.exp() * (g + bias))
        heads = [n % q.shape[2] for n in range(v.shape[2])]
        of_heads = {"q": q[:, :, heads], "k": k[:, :, heads], "v": v, "beta": beta, "g": gates}
        return recurrent({**of_heads, "state": initial_state}, scale)

    return kernel(
        gate="bounded", lower_bound=-4.0, gates="head", heads="tiled", packing="none",
        contract="recurrent-fp32", dtypes=("fp32", "bf16"), name="port",
    )(function)  # fmt: skip


def recurrent(x: Mapping[str, Tensor], scale: float) -> tuple[Tensor, Tensor]:
    """The recurrence in fp32, one gate a head."""
    q, k, v, g, beta, state = (x[name].float() for name in ("q", "k", "v", "g", "beta", "state"))
    made = list[Tensor]()
    for t in range(q.shape[1]):
        state = g[:, t, :, None, None].exp() * state
        u = beta[:, t, :, None] * (v[:, t] - (k[:, t, :, None] @ state)[:, :, 0])
        state = state + k[:, t, :, :, None] * u[:, :, None]
        made.append((scale * q[:, t, :, None] @ state)[:, :, 0])
    return torch.stack(made, 1).to(x["v"].dtype), state


def halved(dt_bias: Tensor) -> Tensor:
    """As it is, with half of its gradient."""
    return 0.5 * (dt_bias + dt_bias.detach())


@pytest.mark.parametrize("adapter", [twin(), bounded()], ids=["softplus", "bounded"])
def test_right_ones_pass(adapter: Adapter) -> None:
    found = outcomes(adapter)
    assert {outcome.output for outcome in found} == {"dA_log", "ddt_bias"}
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_heads_in_another_order_are_held_against_their_own_tokens() -> None:
    found = outcomes(bounded(halved))
    assert [one.output for one in found if one.status.rejects] == ["ddt_bias"] * 2


def test_they_are_not_listed_as_untested_any_more() -> None:
    assert not any("dt_bias" in said for said in outside(gated()))


def test_a_kernel_without_gradients_is_not_tested() -> None:
    closed = kernel(
        GatedKernel(), name="port", gate="softplus", contract="chunk64-fp32", dtypes=("fp32",),
        packing="cu_seqlens", gradients=False,
    )  # fmt: skip
    assert not outcomes(closed)
