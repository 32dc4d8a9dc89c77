"""Backward passes of kernels that scale q and store it read the scaled q. Where logits are a
plateau 16 below the largest, a right port was rejected at 4 times its tolerance.
"""

# pyright: basic
# Functions of autograd have no types.
from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.kernel import kernel
from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.checks.gradients import gradients
from kdaverify.operators.attention.problem import AttentionProblem
from kdaverify.operators.attention.tolerance import counted
from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline

PLATEAU: Final = AttentionProblem(
    dtype="bf16", q_lengths=(1, 3), k_lengths=(63, 16), s_q=4, s_k=79, H=8, h_kv=8, d_k=40, d_v=24,
    scale="model", logits="plateau",
)  # fmt: skip
SHARP: Final = AttentionProblem(
    dtype="bf16", B=2, s_q=3, s_k=40, H=4, h_kv=2, scale="model", logits="sharp"
)
SCALED: Final = "scale:q;q_scaled:bf16"


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (q.float() * scale).to(q.dtype).float() @ k.float().mT


class ByHand(torch.autograd.Function):
    """[h, s, d]; the backward recomputes P from the scaled q, or from q; dk may be scaled twice."""

    @staticmethod
    def forward(ctx: Any, how: tuple[float, str], *qkv: Tensor) -> Tensor:
        (scale, wrong), (q, k, v) = how, qkv
        S = scores(q, k, scale)
        lse = S.logsumexp(-1, keepdim=True)
        top = S.amax(-1, keepdim=True)
        P = (S - top).exp()
        o = (P.to(q.dtype).float() @ v.float() / P.sum(-1, keepdim=True)).to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.wrong = scale, wrong
        return o

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        do, scale = grad_outputs[0].float(), ctx.scale
        scaled = (q.float() * scale).to(q.dtype).float()
        S = q.float() @ k.float().mT * scale if ctx.wrong == "from q" else scores(q, k, scale)
        P = (S - lse).exp()
        dS = P * (do @ v.float().mT - (do * o.float()).sum(-1, keepdim=True))
        P, dS = (x.to(q.dtype).float() for x in (P, dS))
        dk = dS.mT @ scaled * (scale if ctx.wrong == "scaled twice" else 1.0)
        dq, dv = dS @ k.float() * scale, P.mT @ do
        return None, dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


def by_hand(wrong: str) -> Adapter:
    def one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return ByHand.apply((scale, wrong), q, k, v)

    return port(one)


def automatic() -> Adapter:
    def one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return scores(q, k, scale).softmax(-1).to(q.dtype) @ v

    return port(one, form="math", more=";PV:bf16")


def port(one: Any, form: str = "online64", more: str = "") -> Adapter:
    @kernel(op="attention", lse="none", dtypes="bf16", contract=f"{form}-bf16[{SCALED}{more}]")
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
        softmax_scale: float,
    ) -> Tensor:  # fmt: skip
        group = q.shape[-2] // k.shape[-2]
        k, v = (x.repeat_interleave(group, -2) for x in (k, v))
        if cu_seqlens_q is None:
            found = one(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale)
            return found.transpose(1, 2)
        q_sizes, k_sizes = (x.diff().tolist() for x in (cu_seqlens_q, cu_seqlens_k))
        parts = zip(q.split(q_sizes), k.split(k_sizes), v.split(k_sizes), strict=True)
        found = [one(*(x.transpose(0, 1) for x in part), softmax_scale) for part in parts]
        return torch.cat([x.transpose(0, 1) for x in found])

    return attention


def rejected(adapter: Adapter, problem: AttentionProblem, seed: int) -> bool:
    inside = adapter.operator.within(adapter, problem.replace(seed=seed))
    return any(x.status.rejects for x in gradients(adapter, inside, of="both"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("problem", [PLATEAU, SHARP], ids=["plateau", "sharp"])
def test_a_backward_that_reads_the_scaled_q_passes(problem: AttentionProblem, seed: int) -> None:
    assert not rejected(by_hand(""), problem, seed)
    assert not rejected(automatic(), problem, seed)


def test_a_backward_that_scales_twice_or_reads_q_is_rejected() -> None:
    assert rejected(by_hand("scaled twice"), PLATEAU, 1)
    assert rejected(by_hand("from q"), SHARP, 1)


def test_bounds_have_the_rounding_of_the_scaled_q_in_dk() -> None:
    call = SHARP.replace(logits="normal").inputs()
    loss = {"do": torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(1)).bfloat16()}
    contract = attention_contract(f"online64-bf16[{SCALED}]")
    arithmetic = reference_kernels(contract)["library order"]
    design = OnlineDesign(scale="q")
    run = AttentionBackward(design, arithmetic)
    parts = [
        run(x, AttentionPipeline(design, arithmetic)(x, torch.float32), given, torch.float32)
        for x, given in zip(call.segments(), call.losses(loss), strict=True)
    ]
    found = call.joined_gradients(parts)["dk"]
    value, error = counted(call, loss, contract, FORMATS["bf16"])["dk"]
    assert bool(((found - value).abs() <= error.bound).all())
    narrow = counted(call, loss, attention_contract("online64-bf16"), FORMATS["bf16"])["dk"][1]
    assert bool((error.bound > narrow.bound).all())


def test_stored_queries_are_rounded_alike_in_both_passes() -> None:
    from kdaverify.budgets.attention.arithmetic import sampled_arithmetic

    contract = attention_contract(f"online64-bf16[{SCALED}]")
    arithmetic, x = sampled_arithmetic(contract, 0), torch.rand(4, 5, dtype=torch.float64)
    assert torch.equal(arithmetic.store("q_scaled", x), arithmetic.store("q_scaled", x))
    assert not torch.equal(arithmetic.store("P", x), arithmetic.store("P", x))
