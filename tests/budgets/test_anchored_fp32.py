"""Chunks of fp32 operands whose diagonal blocks are products of two factors: declared as that they
pass, there and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_file import parse_contract, to_toml
from kdaverify.budgets.description import describe
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import Problem

CHUNK, BLOCK, WIDTH = 64, 16, 32
NAME: Final = "chunk64-fp32-anchored"
Anchor = Callable[[Tensor, Tensor], Tensor]
Fmt = Callable[[Tensor], Tensor]


def before(_G: Tensor, start: Tensor) -> Tensor:
    """The sum of gates before the block."""
    return start


def halfway(_G: Tensor, start: Tensor) -> Tensor:
    """About half of what gates of at least -5 sum to in a block;
    exp(30) exp(-30) is 1 - 2^-24 in fp32.
    """
    return start - 35.0


def exact(factor: Tensor) -> Tensor:
    return factor


def scores(x: Tensor, k: Tensor, G: Tensor, anchor: Anchor, fmt: Fmt) -> Tensor:
    """[..., C, C] of x_i . (exp(G_i - G_j) k_j), by blocks of rows; on the diagonal the exponents
    are relative to `anchor`.
    """
    start = torch.zeros_like(G[..., :1, :])
    rows: list[Tensor] = []
    for first in range(0, x.shape[-2], BLOCK):
        own = slice(first, min(first + BLOCK, x.shape[-2]))
        top = G[..., own, :][..., :1, :]
        a = anchor(G[..., own, :], G[..., first - 1 : first, :] if first else start)
        parts = (
            [
                (x[..., own, :] * (G[..., own, :] - top).exp())
                @ (k[..., :first, :] * (top - G[..., :first, :]).exp()).mT
            ]
            if first
            else []
        )
        later, earlier = fmt((G[..., own, :] - a).exp()), fmt((a - G[..., own, :]).exp())
        parts.append((x[..., own, :] * later) @ (k[..., own, :] * earlier).mT)
        rows.append(torch.nn.functional.pad(torch.cat(parts, -1), (0, x.shape[-2] - own.stop)))
    return torch.cat(rows, -2)


def kernel(contract: str, anchor: Anchor = before, fmt: Fmt = exact) -> Adapter:
    """The chunk form in plain torch, differentiated by torch."""

    @kv.kernel(name="anchored", contract=contract, dtypes=("fp32",))
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
        q, k, v, g, b = (x.transpose(1, 2) for x in (q, k, v, g, beta[..., None]))
        state = (
            q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
            if initial_state is None
            else initial_state
        )
        out: list[Tensor] = []
        for first in range(0, q.shape[-2], CHUNK):
            Q, K, V, g_, b_ = (x[..., first : first + CHUNK, :] for x in (q, k, v, g, b))
            G = g_.cumsum(-2)
            A = (b_ * scores(K, K, G, anchor, fmt)).tril(-1)
            residual = b_ * V - (b_ * K * G.exp()) @ state
            written = torch.linalg.solve_triangular(
                A + torch.eye(A.shape[-1]), residual, upper=False, unitriangular=True
            )
            out.append(
                scale * ((Q * G.exp()) @ state + scores(Q, K, G, anchor, fmt).tril() @ written)
            )
            state = state * G[..., -1:, :].exp().mT + (K * (G[..., -1:, :] - G).exp()).mT @ written
        return torch.cat(out, -2).transpose(1, 2), state

    return run


def problem(T: int, gate: str = "bound-5") -> Problem:
    fields: dict[str, Any] = {
        "B": 1,
        "H": 2,
        "HV": 2,
        "K": WIDTH,
        "V": WIDTH,
        "dtype": "fp32",
        "state": "random",
        "value": "normal",
    }
    return Problem(**fields, T=T, gate=gate, key="random", beta="uniform", seed=3)


def statuses(adapter: Adapter, tested: Problem) -> set[Status]:
    return {outcome.status for outcome in forward(adapter, tested)}


# An anchor 35 nats from gates that are weak rounds its exponents four times as coarsely as the
# contract's, which is 15 off.
@pytest.mark.parametrize(
    ("gate", "anchor"),
    [
        ("bound-5", before),
        ("log-sigmoid", before),
        ("mild", before),
        ("bound-5", halfway),
        ("log-sigmoid", halfway),
    ],
)
@pytest.mark.parametrize("T", [1, 65])
def test_a_conforming_kernel_passes(T: int, gate: str, anchor: Anchor) -> None:
    adapter, tested = kernel(NAME, anchor), problem(T, gate)
    for outcome in (*forward(adapter, tested), *gradients(adapter, tested, of="both")):
        assert outcome.status is Status.PASS, outcome.message


@pytest.mark.parametrize(("name", "status"), [("chunk64-fp32", Status.FAIL), (NAME, Status.PASS)])
def test_one_token_of_one_channel_errs_by_the_rounding_of_two_factors(
    name: str, status: Status
) -> None:
    # Where exponents are differences the score of a token with itself has no decay at all: nothing
    # is allowed for it.
    alone = problem(1).replace(K=1, V=1, H=1, HV=1, beta="one", state="absent", seed=0)
    by_output = {outcome.output: outcome for outcome in forward(kernel(name, halfway), alone)}
    assert by_output["o"].status is status
    found = by_output["o"].comparison
    assert found is not None
    assert found.value == pytest.approx(2.0**-24)


@pytest.mark.parametrize("fmt", [torch.bfloat16, torch.float16])
def test_factors_of_16_bits_are_caught(fmt: torch.dtype) -> None:
    assert Status.FAIL in statuses(
        kernel(NAME, fmt=lambda x: x.to(fmt).float()), problem(65, "mild")
    )


def test_an_anchor_whose_factors_overflow_is_caught() -> None:
    def far(_G: Tensor, start: Tensor) -> Tensor:
        return start - 40.0

    assert Status.NONFINITE in statuses(kernel(NAME, far), problem(65)) | statuses(
        kernel(NAME, lambda G, s: s + 40.0), problem(65)
    )


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "chunk64-fp32-anchored[anchor:middle]",
        "chunk32-fp64-anchored",
        "chunk64-tf32-anchored-fp32carry",
    ],
)
def test_it_is_declared_by_name_and_by_file(name: str) -> None:
    contract = contract_from_name(name)
    assert contract_from_name(contract.name) == contract
    assert parse_contract(to_toml(contract), "here").contract(None) == contract
    assert describe(contract).settled["anchor of diagonal scores"] == contract.anchor
    assert any("anchor" in member for member in describe(contract).members)
