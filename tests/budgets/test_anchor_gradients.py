"""The gradient of the row that scores are anchored at is 0 but for roundings: a kernel that
differentiates through it passes, and faults of dg are found beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.gradients import gradients
from kdaverify.checks.jacobian import jacobian
from kdaverify.checks.status import Status
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.hosts import host_of
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import cotangents
from oracles.arithmetic import is_finite

BLOCK: Final = 16
NAME: Final = "chunk16-fp32-anchored[anchor:middle]"
Anchor = Callable[[Tensor], Tensor]


def of_the_rows_that_are_there(G: Tensor) -> Tensor:
    return G[..., G.shape[-2] // 2, None, :]


def of_a_whole_block(G: Tensor) -> Tensor:
    return G[..., min(BLOCK // 2, G.shape[-2] - 1), None, :]


def one_side_detached(G: Tensor) -> Tensor:
    """Of the two factors one takes the anchor for a constant: its gradient does not cancel."""
    return of_the_rows_that_are_there(G).detach()


def kernel(
    there: Anchor, back: Anchor | None = None, name: str = NAME, cast: Anchor = Tensor.float
) -> Adapter:
    """Chunks of a block in plain torch, differentiated by torch, scores relative to an anchor.

    Args:
        cast: what brings the operands of products to their format.
    """

    @kv.kernel(name="anchored", contract=name, dtypes=("fp32", "bf16"), gate_range=(-5, 0))
    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
    ) -> Any:
        kind = q.dtype
        q, k, v, g, b = (x.float().transpose(1, 2) for x in (q, k, v, g, beta[..., None]))
        q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
        shape = *v.shape[:2], q.shape[-1], v.shape[-1]
        state = q.new_zeros(shape) if initial_state is None else initial_state
        out: list[Tensor] = []
        for first in range(0, q.shape[-2], BLOCK):
            Q, K, V, g_, b_ = (x[..., first : first + BLOCK, :] for x in (q, k, v, g, b))
            G = g_.cumsum(-2)
            later, earlier = (G - there(G)).exp(), ((back or there)(G) - G).exp()
            keys = cast(K * earlier).mT
            A = cast(b_ * (cast(K * later) @ keys)).tril(-1)
            written = torch.linalg.solve_triangular(
                A + torch.eye(A.shape[-1]),
                b_ * V - (b_ * K * G.exp()) @ state,
                upper=False,
                unitriangular=True,
            )
            scores = cast(cast(Q * later) @ keys).tril()
            out.append(scale * ((Q * G.exp()) @ state + scores @ written))
            state = state * G[..., -1:, :].exp().mT + (K * (G[..., -1:, :] - G).exp()).mT @ written
        return torch.cat(out, -2).transpose(1, 2).to(kind), state

    return run


def problem(**fields: Any) -> Problem:
    common: dict[str, Any] = {
        "B": 1,
        "H": 1,
        "HV": 1,
        "gate": "mixed",
        "gate_range": (-5.0, None),
        "state": "random",
    }
    return Problem(**common | fields)


# Keys of 2^-13 and rare writes: beside the first tokens' terms those of token 8 are 10^-5.
TINY: Final = problem(
    T=60, K=32, V=32, dtype="bf16", key="tiny", beta="sparse", value="zero", seed=7966
)
# The incoming gradient of a token before the anchor alone: the exact dg from there on is 0.
TINIEST: Final = problem(
    T=4, HV=2, K=1, V=1, dtype="fp32", key="one-hot", beta="uniform", value="normal", seed=20293
)
# Of one channel, where pairs (i, i) cancel in dg.
CAST: Final = problem(
    T=17, K=1, V=1, dtype="bf16", key="coherent-0.9", beta="uniform", value="normal", seed=78
).replace(state="asymmetric")
SHORT: Final = problem(
    T=25, K=32, V=32, dtype="fp32", key="random", beta="uniform", value="normal", seed=5
)


@pytest.mark.parametrize("anchor", [of_the_rows_that_are_there, of_a_whole_block])
@pytest.mark.parametrize("name", [NAME, "chunk16-fp32-anchored"])
def test_a_kernel_that_differentiates_through_its_anchors_passes(anchor: Anchor, name: str) -> None:
    adapter = kernel(anchor, name=name)
    for outcome in (
        *gradients(adapter, TINY, of="o", exponent=-25),
        *gradients(adapter, SHORT, of="both"),
        *jacobian(adapter, TINIEST),
    ):
        assert outcome.status is Status.PASS, outcome.message


def test_an_anchor_that_is_constant_in_one_factor_alone_is_caught() -> None:
    wrong = kernel(of_the_rows_that_are_there, one_side_detached)
    failed = {x.output for x in gradients(wrong, SHORT, of="o") if x.status.rejects}
    assert "dg" in failed


@pytest.mark.parametrize("back", [None, one_side_detached])
def test_casts_of_factors_conform_under_autograd(back: Anchor | None) -> None:
    name = "chunk16-bf16-anchored[anchor:middle]"
    adapter = kernel(of_a_whole_block, back, name, FORMATS["bf16"].round)
    failed = {x.output for x in gradients(adapter, CAST, of="both") if x.status.rejects}
    assert failed == (set() if back is None else {"dg"})


def test_where_no_anchor_is_declared_nothing_more_is_allowed() -> None:
    adapter = kernel(of_the_rows_that_are_there, name="chunk16-fp32")
    failed = {x.output for x in gradients(adapter, TINY, of="o") if x.status.rejects}
    assert failed == {"dg"}


@pytest.mark.parametrize("fault", ["B3", "B17", "B9", "DESIGN-f", "SO8"])
def test_faults_of_dg_are_caught_under_an_anchored_contract(fault: str) -> None:
    contract, planted = contract_from_name("chunk64-fp32-anchored[anchor:middle]"), FAULTS[fault]
    twin = False
    wrong = host_of(planted).embedded(planted, contract, contract.chunk_size, twin)
    tested = SHORT.replace(T=150, lengths=(85, 65))
    failed = {x.output for x in gradients(wrong, tested, of="both") if x.status.rejects}
    assert "dg" in failed


def test_samples_stay_finite_where_factors_are_as_large_as_gates_let_them() -> None:
    tested = SHORT.replace(dtype="bf16", gate="bound-5", T=60)
    contract = contract_from_name("chunk16-bf16-anchored")
    made = emulate_gradients(
        tested.inputs(), cotangents(tested, "o", -25), contract, FORMATS["bf16"]
    )
    assert all(is_finite(x) for run in made.drawn for x in run.named().values())
