"""Gradients of conforming kernels are within tolerance; those of a weaker contract are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.ensemble import rounded_kernels
from kdaverify.budgets.attention.reference import Loss, attention_gradient_reference
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from kdaverify.operators.attention.problem import AttentionProblem
from oracles.attention.backward import (
    AttentionBackward,
    AttentionBackwardStages,
    Given,
    d_scores,
    recomputed,
)
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import PackedRows
from oracles.attention.segment import Segment
from tests.attention.segments import (
    emulated,
    enclosed,
    gradients_of,
    reference_of,
    segment,
    textbook,
    worst_ratios,
)


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_gradients_are_measured_against_the_products_of_ds(shift: float) -> None:
    given = segment(s_k=128, d_v=32, dtype=torch.bfloat16, empty=False)
    k = given.k.clone()
    k[..., 0] += shift  # common to all keys: dS sums to 0 only up to rounding
    given = replace(given, k=k)
    rng = torch.Generator().manual_seed(3)
    do = torch.randn(textbook(given)[0].shape, generator=rng).bfloat16()
    o, lse = textbook(given)
    exact = gradients_of([AttentionBackward()(given, (o, lse), (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-bf16", FORMATS["bf16"])
    reference = attention_gradient_reference(
        [given], [Loss(do, None)], enclosures, gradients_of, contract, method="float64"
    )
    other = emulated("online64-bf16", OnlineDesign(block=24, direction="backward", base="e"))
    found = gradients_of([other.backward(given, other.forward(given), do, None)])
    assert max(worst_ratios(reference, found).values()) <= 1
    narrow = next(iter(rounded_kernels(attention_contract("online64-bf16[dS:e4m3]")).values()))
    wrong = gradients_of([narrow.backward(given, narrow.forward(given), do, None)])
    assert worst_ratios(reference, wrong)["dq"] > 1


def test_dS_may_be_stored_with_the_scale_in_it() -> None:
    """cuDNN does so: of a small loss in fp16, a scale of 1/4 takes two bits more of dS."""
    given = segment(s_k=128, d_v=32, dtype=torch.float16, empty=False)
    given = replace(given, scale=0.25)
    do = torch.randn(textbook(given)[0].shape, generator=torch.Generator().manual_seed(3))
    do = (do * 2.0**-12).half()
    exact = gradients_of([AttentionBackward()(given, textbook(given), (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-fp16", FORMATS["fp16"])
    reference = attention_gradient_reference(
        [given], [Loss(do, None)], enclosures, gradients_of, contract, method="float64"
    )

    def worst(lost: float) -> float:
        """Of kernels that store dS times c and a power of two, and take that out again."""
        run = emulated("online64-fp16", OnlineDesign(block=48, base="e", scale="scores"), "fp16")
        o, lse = run.forward(given)
        scaled = replace(given, scale=given.scale * lost)
        small = AttentionBackward(run.design, run.arithmetic, _rescaled(lost))
        dq, dk, _ = small(scaled, (o, lse), (do, None), run.work)
        found = {"dq": dq.double() / lost, "dk": dk.double() / lost}
        return max(worst_ratios(reference, found).values())

    assert worst(1.0) <= 1
    assert worst(2.0**-5) > 4


def test_dS_may_be_of_rounded_P_where_that_is_declared() -> None:
    """As in torch's memory-efficient attention, where fp16 takes the last bits of small weights."""
    size = {"B": 1, "H": 4, "h_kv": 4, "s_q": 3, "s_k": 131, "d_k": 16, "d_v": 8}
    inputs = {
        "dtype": "fp16",
        "logits": "falling",
        "value": "normal",
        "scale": "default",
        "seed": 1,
    }
    problem = AttentionProblem.model_validate(size | inputs | {"causal": False, "op": "attention"})
    (given,) = problem.inputs().segments()
    stored = textbook(given)
    do = torch.randn(stored[0].shape, generator=torch.Generator().manual_seed(3)).half()
    exact = gradients_of([AttentionBackward()(given, stored, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}

    def worst(contract: str, stages: AttentionBackwardStages) -> float:
        reference = attention_gradient_reference(
            *([given], [Loss(do, None)], enclosures, gradients_of),
            attention_contract(contract, FORMATS["fp16"]),
            method="float64",
        )
        design = OnlineDesign(block=48, base="e", d_scores="rounded")
        run = emulated("online64-fp16", design, "fp16")
        kernel = AttentionBackward(design, run.arithmetic, stages)
        dq, dk, _ = kernel(given, run.forward(given), (do, None), run.work)
        return max(worst_ratios(reference, {"dq": dq, "dk": dk}).values())

    declared = "online64-fp16[d_scores:rounded]"
    assert worst(declared, AttentionBackwardStages()) <= 1
    assert worst("online64-fp16", AttentionBackwardStages()) > 1.5
    assert worst(declared, AttentionBackwardStages(d_scores=_coarser)) > 4


def _coarser(run: AttentionBackward, P: Tensor, dP: Tensor, delta: Tensor, dlse: Tensor) -> Tensor:
    """dS of weights that lost five bits more."""
    return d_scores(run, run.arithmetic.store("P_backward", P / 32) * 32, dP, delta, dlse)


def _rescaled(lost: float) -> AttentionBackwardStages:
    """Stages whose scores have the true scale."""

    def weights(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
        return recomputed(run, replace(rows, scale=rows.scale / lost), given)

    return AttentionBackwardStages(weights=weights)


def _grouped() -> tuple[Segment, Tensor, Reference]:
    """Eight query heads of one KV head, and the tolerances of its gradients."""
    given = segment(H=8, h_kv=1, s_q=64, s_k=64, dtype=torch.bfloat16, empty=False)
    found = textbook(given)
    do = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(3)).bfloat16()
    exact = gradients_of([AttentionBackward()(given, found, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-bf16", FORMATS["bf16"])
    losses = [Loss(do, None)]
    reference = attention_gradient_reference(
        [given], losses, enclosures, gradients_of, contract, method="float64"
    )
    return given, do, reference


def _each_head(given: Segment, do: Tensor) -> dict[str, Tensor]:
    """[H, ...] gradients of KV heads that were repeated, each stored in bf16."""
    leaves = [
        x.detach().requires_grad_()
        for x in (given.q, *(x.expand(len(given.q), -1, -1) for x in (given.k, given.v)))
    ]
    o = torch.nn.functional.scaled_dot_product_attention(
        *leaves, attn_mask=given.visible, scale=given.scale
    )
    return dict(zip(("dq", "dk", "dv"), torch.autograd.grad(o, leaves, do), strict=True))


def test_heads_may_be_stored_before_they_are_summed() -> None:
    given, do, reference = _grouped()
    found = _each_head(given, do)
    summed = found | {n: found[n].float().sum(0, keepdim=True).bfloat16() for n in ("dk", "dv")}
    assert max(worst_ratios(reference, summed).values()) <= 1


def test_heads_of_a_request_without_queries_have_gradients_of_zero() -> None:
    given = segment(H=4, h_kv=2, s_q=0, empty=False)
    backward = AttentionBackward(OnlineDesign(heads="alone"))
    dq, dk, dv = backward(given, textbook(given), (textbook(given)[0], None), torch.float64)
    assert dq.shape == given.q.shape and not dk.any() and not dv.any()
    assert (dk.shape, dv.shape) == (given.k.shape, given.v.shape)


def test_a_sum_over_heads_in_sixteen_bits_is_over_tolerance() -> None:
    given, do, reference = _grouped()
    found = _each_head(given, do)
    for name in ("dk", "dv"):
        total = torch.zeros_like(found[name][:1])
        for head in found[name]:
            total = total + head
        found[name] = total
    assert worst_ratios(reference, found)["dv"] > 1


def _port(given: Segment, *, score: bool, block: int = 64) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Online attention in torch whose products of bf16 tensors are bf16, and the tensors that it
    differentiates.
    """
    q, k, v = leaves = [x.detach().requires_grad_() for x in (given.q, given.k, given.v)]
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    m = q.new_full((*q.shape[:2], 1), -torch.inf).float()
    l, acc = torch.zeros_like(m), torch.zeros_like(m)  # noqa: E741
    for keys in torch.arange(k.shape[1]).split(block):
        kb, vb = k[:, keys], v[:, keys]
        S = ((q @ kb.mT).float() if score else q.float() @ kb.float().mT) * given.scale
        new = torch.maximum(m, S.amax(-1, keepdim=True))
        P, alpha = (S - new).exp(), (m - new).exp()
        l, acc = alpha * l + P.sum(-1, keepdim=True), alpha * acc + P.bfloat16() @ vb  # noqa: E741
        m = new
    return (acc / l).bfloat16(), tuple(leaves)


@pytest.mark.parametrize(
    ("declared", "score"), [("PV:bf16", False), ("product:bf16;PV:bf16", True)]
)
@pytest.mark.parametrize("std", [0.05, 1.0])
def test_products_stored_in_sixteen_bits_are_declared(
    declared: str, *, score: bool, std: float
) -> None:
    """A port in torch under autograd, which differentiates the running maximum too."""
    contract = f"online64-bf16[{declared}]"
    ratios = {contract: dict[str, float](), "online64-bf16": dict[str, float]()}
    for seed in range(4):
        given = segment(H=4, s_q=3, s_k=131, std=std, dtype=torch.bfloat16, empty=False, seed=seed)
        given = replace(given, visible=torch.ones_like(given.visible))
        o, leaves = _port(given, score=score)
        do = torch.randn(o.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()
        found = gradients_of([torch.autograd.grad(o, leaves, do)])
        for name, worst in ratios.items():
            for key, ratio in (_port_ratios(given, o, do, found, name)).items():
                worst[key] = max(worst.get(key, 0.0), ratio)
    assert max(ratios[contract].values()) <= 1
    assert max(ratios["online64-bf16"].values()) > 1


@pytest.mark.parametrize("block", [16, 32, 128])
def test_the_key_of_any_running_maximum_has_the_roundings_of_a_block(block: int) -> None:
    """Where values are alike dS is 0, but for keys that are the maximum where a block ends."""
    given = segment(H=4, s_q=3, s_k=131, dtype=torch.bfloat16, empty=False, seed=1)
    given = replace(given, v=torch.ones_like(given.v), visible=torch.ones_like(given.visible))
    o, leaves = _port(given, score=True, block=block)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = gradients_of([torch.autograd.grad(o, leaves, do)])
    contract = "online64-bf16[product:bf16;PV:bf16]"
    assert max(_port_ratios(given, o, do, found, contract).values()) <= 1


def _port_ratios(
    given: Segment, o: Tensor, do: Tensor, found: dict[str, Tensor], contract: str
) -> dict[str, float]:
    """Errors of o and the gradients, in tolerances."""
    exact = gradients_of([AttentionBackward()(given, textbook(given), (do, None), torch.float64)])
    reference = attention_gradient_reference(
        [given],
        [Loss(do, None)],
        {name: enclosed(x) for name, x in exact.items()},
        gradients_of,
        attention_contract(contract, FORMATS["bf16"]),
        method="float64",
    )
    return worst_ratios(reference_of(given, contract), {"o": o.detach()}) | worst_ratios(
        reference, found
    )


@pytest.mark.parametrize("power", [-126, -110])
def test_weights_below_the_smallest_normal_number_may_be_flushed(power: int) -> None:
    """As every GPU's fast exponential and XLA's on a CPU do."""
    given = segment(H=1, h_kv=1, s_q=4, s_k=60, dtype=torch.float32, empty=False)
    # logits from 0 down to -100: the weights of the last keys are below 2^-126
    q, k = torch.zeros_like(given.q), torch.zeros_like(given.k)
    q[..., 0], k[..., 0] = 1.0, torch.linspace(0, -100, 60) / given.scale
    given = replace(given, q=q, k=k)
    found = textbook(given)
    do = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(3))
    exact = gradients_of([AttentionBackward()(given, found, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    reference = attention_gradient_reference(
        [given],
        [Loss(do, None)],
        enclosures,
        gradients_of,
        attention_contract("online-fp32"),
        method="float64",
    )

    def flushed(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
        P = recomputed(run, rows, given)
        return P.masked_fill(P.log2() < power, 0.0)

    stages = AttentionBackwardStages(weights=flushed)
    backward = AttentionBackward(OnlineDesign(), stages=stages)
    wrong = gradients_of([backward(given, found, (do, None), torch.float32)])
    assert (max(worst_ratios(reference, wrong).values()) <= 1) == (power == -126)
