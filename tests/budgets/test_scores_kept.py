"""Kernels that keep the scores in fp32 until their inverse is made, where keys are identical."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.freedoms import plainest
from kdaverify.budgets.reference_kernels import scores_kept
from kdaverify.checks.gradients import gradients
from kdaverify.problems import Problem

CHUNK = 64
Outputs = tuple[Tensor, Tensor]
ERASED = Problem(
    B=1,
    T=65,
    H=2,
    HV=2,
    K=32,
    V=32,
    dtype="bf16",
    gates="none",
    gate="zero",
    key="identical",
    beta="one",
    state="random",
    value="normal",
    seed=0,
)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _seven_bits(x: Tensor) -> Tensor:
    """bf16 without its last bit."""
    return x.bfloat16().view(torch.int16).bitwise_and(-2).view(torch.bfloat16).float()


def _product(a: Tensor, b: Tensor) -> Tensor:
    return _bf16(a) @ _bf16(b)


class _Coarse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        del ctx
        return _seven_bits(x)

    @staticmethod
    def backward(ctx: object, *grad_outputs: Tensor) -> Tensor:
        del ctx
        return grad_outputs[0]


def _chunk(tokens: Sequence[Tensor], S: Tensor, *, coarse: bool) -> Outputs:
    q, k, v, beta = tokens
    kb, vb = beta[..., None] * k, beta[..., None] * v
    scores = _product(kb, k.mT).tril(-1)
    eye = torch.eye(scores.shape[-1])
    inverse = torch.linalg.solve_triangular(
        scores, eye.expand_as(scores), upper=False, unitriangular=True
    )
    R: Tensor = _Coarse.apply(inverse) if coarse else _bf16(inverse)
    new = _bf16(_bf16(_product(R, vb)) - _product(_product(R, kb), S))
    return _product(q, S) + _product(_product(q, k.mT).tril(), new), S + _product(k.mT, new)


def _kernel(*, coarse: bool = False) -> Adapter:
    @kv.kernel(
        name=f"inverted in fp32, coarse {coarse}",
        contract="chunk64-bf16[scale:in-q]",
        gates="none",
        dtypes=("bf16",),
        packing="none",
    )
    def kernel(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, scale: float, initial_state: Tensor
    ) -> Outputs:
        scaled = (q.float() * scale).to(q.dtype)
        of_heads = [x.float().transpose(1, 2) for x in (scaled, k, v, beta)]
        state, written = initial_state.float(), list[Tensor]()
        for first in range(0, q.shape[1], CHUNK):
            part = [x[:, :, first : first + CHUNK] for x in of_heads]
            o, state = _chunk(part, state, coarse=coarse)
            written.append(o)
        return torch.cat(written, 2).transpose(1, 2).to(q.dtype), state

    return kernel


@pytest.mark.parametrize("seed", range(6))
def test_a_kernel_that_rounds_the_inverse_alone_conforms(seed: int) -> None:
    outcomes = gradients(_kernel(), ERASED.replace(seed=seed), of="both")
    assert not [outcome.message for outcome in outcomes if outcome.status.rejects]


@pytest.mark.parametrize("key", ["identical", "coherent-0.6", "random"])
def test_an_inverse_in_fewer_bits_than_declared_is_rejected(key: str) -> None:
    problem = ERASED.replace(key=key, beta="uniform")
    for coarse in (False, True):
        outcomes = gradients(_kernel(coarse=coarse), problem, of="both")
        rejected = {x.output for x in outcomes if x.status.rejects}
        assert rejected >= {"d_initial_state"} if coarse else not rejected


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("chunk64-bf16", True),
        ("chunk64-bf16[Akk:fp32]", False),
        ("chunk64-bf16-tf32solve", False),
        ("chunk64-tf32", False),
        ("chunk64-fp32", False),
    ],
)
def test_only_stored_scores_have_a_kernel_that_keeps_them(name: str, kept: bool) -> None:
    assert bool(scores_kept(plainest(contract_from_name(name), FORMATS["bf16"]))) is kept
