"""Conforming kernels are within tolerance; kernels of a weaker contract are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.ensemble import ReferenceKernel, kernel, rounded_kernels
from kdaverify.budgets.attention.reference import (
    Loss,
    attention_gradient_reference,
    attention_reference,
)
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.sums import from_last
from kdaverify.operators.attention.problem import AttentionProblem
from oracles.attention.backward import (
    AttentionBackward,
    AttentionBackwardStages,
    Given,
    d_scores,
    recomputed,
)
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import LN2, AttentionPipeline, PackedRows
from oracles.attention.segment import Segment
from tests.attention.segments import enclosed, segment, textbook


def _outputs(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {"o": parts[0][0], "lse": parts[0][1]}


def _gradients(parts: Sequence[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return dict(zip(("dq", "dk", "dv"), parts[0], strict=True))


def _reference(given: Segment, contract: str, dtype: str = "bf16") -> Reference:
    exact = {name: enclosed(x) for name, x in _outputs([textbook(given)]).items()}
    declared = attention_contract(contract, FORMATS[dtype])
    return attention_reference([given], exact, _outputs, declared, method="float64")


def _worst(reference: Reference, found: dict[str, Tensor]) -> dict[str, float]:
    worst = dict[str, float]()
    for name, x in found.items():
        allowed, exact = reference.budgets[name], reference.exact(name)
        error = exact.error(x).masked_fill(torch.isinf(x), 0.0)
        worst[name] = max(allowed.ratios(allowed.measure(error, exact)).values())
    return worst


def _run(contract: str, design: OnlineDesign, dtype: str = "bf16") -> ReferenceKernel:
    declared = attention_contract(contract, FORMATS[dtype])
    library = reference_kernels(declared)["library order"]
    return kernel(design, library, declared.accumulate.dtype)


@pytest.mark.parametrize("std", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_designs_outside_the_ensemble_are_within_tolerance(std: float, dtype: str) -> None:
    given = segment(std=std, s_k=300, dtype=FORMATS[dtype].dtype, H=8)
    contract = f"online64-{dtype}"
    reference = _reference(given, contract, dtype)
    cuts: tuple[tuple[int, int, Any], ...] = ((48, 3, "tree"), (17, 5, "reversed"))
    for block, splits, merge in cuts:
        design = OnlineDesign(block, "backward", splits, "uneven", merge, base="e", scale="scores")
        found = _outputs([_run(contract, design, dtype).forward(given)])
        assert max(_worst(reference, found).values()) <= 1


@pytest.mark.parametrize(
    ("stored", "std", "output"),
    [
        ("S:bf16", 8.0, "lse"),
        ("S:bf16", 8.0, "o"),
        ("P:e4m3", 1.0, "o"),
        ("partial_o:bf16", 8.0, "o"),
        ("partial_lse:bf16", 1.0, "lse"),
    ],
)
def test_a_narrower_format_than_declared_is_over_tolerance(
    stored: str, std: float, output: str
) -> None:
    given = segment(std=std, s_k=500, H=16, s_q=4, d_v=64, dtype=torch.bfloat16)
    reference = _reference(given, "online64-bf16")
    design = OnlineDesign(splits=8 if "partial" in stored else 1)
    found = _outputs([_run(f"online64-bf16[{stored}]", design).forward(given)])
    assert _worst(reference, found)[output] > 1


def test_row_sums_of_rounded_p_have_to_be_declared() -> None:
    given = segment(s_k=500, H=16, dtype=torch.bfloat16)
    found = _outputs([_run("online64-bf16", OnlineDesign(row_sum="rounded")).forward(given)])
    assert _worst(_reference(given, "online64-bf16"), found)["lse"] > 1
    free = _worst(_reference(given, "online64-bf16[row_sum:free]"), found)
    assert max(free.values()) <= 1


def test_lazy_rescaling_has_to_be_declared_and_is_then_within_tolerance() -> None:
    given = segment(std=8.0, s_k=500, H=16, dtype=torch.bfloat16)
    lazy = OnlineDesign(block=32, rescale="lazy", lazy=8.0)
    found = _outputs([_run("online64-bf16", lazy).forward(given)])
    assert max(_worst(_reference(given, "online64-bf16[lazy:8]"), found).values()) <= 1


def _peaked(seed: int) -> Segment:
    return segment(
        std=6.0, s_q=1, s_k=65, H=1, h_kv=1, seed=seed, dtype=torch.bfloat16, empty=False
    )


@pytest.mark.parametrize("row_sum", ["unrounded", "rounded"])
@pytest.mark.parametrize("seed", [1, 14, 38, 51, 71])
def test_the_largest_weight_is_rounded_where_the_maximum_lags(seed: int, row_sum: Any) -> None:
    given, contract = _peaked(seed), f"online64-bf16[lazy:8;row_sum:{row_sum}]"
    lazy = OnlineDesign(row_sum=row_sum, rescale="lazy", lazy=8.0)
    reference = _reference(given, contract)
    for block in (16, 24, 48):
        for direction in ("forward", "backward"):
            design = replace(lazy, block=block, direction=direction)
            found = _outputs([_run("online64-bf16", design).forward(given)])
            assert max(_worst(reference, found).values()) <= 1


def test_lagging_admits_no_narrower_weights() -> None:
    given, lazy = _peaked(14), OnlineDesign(16, "backward", rescale="lazy", lazy=8.0)
    found = _outputs([_run("online64-bf16[P:e4m3]", lazy).forward(given)])
    assert max(_worst(_reference(given, "online64-bf16[lazy:8]"), found).values()) > 1


def _last_wins(seed: int) -> Segment:
    """65 keys, of which the last has all weight but e^-6."""
    given = segment(std=0.3, s_q=4, s_k=65, H=8, d_v=64, seed=seed, empty=False)
    q = given.q + 6 * given.of_heads(given.k)[:, -1:] / given.q.shape[-1] ** 0.5
    q, k, v = (x.float() for x in (q, given.k, given.v))
    return Segment(q, k, v, given.scale, torch.ones_like(given.visible))


def _summed_from_last(design: OnlineDesign, stored: str = "online-fp32") -> ReferenceKernel:
    one = _run(stored, design, "fp32")
    return replace(one, arithmetic=replace(one.arithmetic, dot=from_last))


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_begin_with_the_key_that_wins_are_within_tolerance(seed: int) -> None:
    given, design = _last_wins(seed), OnlineDesign(block=96, direction="backward")
    found = _outputs([_summed_from_last(design).forward(given)])
    assert max(_worst(_reference(given, "online-fp32", "fp32"), found).values()) <= 1


def test_such_sums_admit_no_weights_in_16_bits() -> None:
    given, design = _last_wins(0), OnlineDesign(block=96, direction="backward")
    found = _outputs([_summed_from_last(design, "online-fp32[P:fp16]").forward(given)])
    assert _worst(_reference(given, "online-fp32", "fp32"), found)["o"] > 1


def _relative_to_lse(given: Segment) -> dict[str, Tensor]:
    """P = exp(S - LSE), as ports in torch write it."""
    q, k, v = (x.float() for x in (given.q, given.of_heads(given.k), given.of_heads(given.v)))
    scores = (q @ k.mT * given.scale).masked_fill(~given.visible, -torch.inf)
    lse = scores.logsumexp(-1)
    return {"o": (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp() @ v, "lse": lse}


def _in_four_parts(given: Segment) -> dict[str, Tensor]:
    """The same over parts of the keys, each weighted by exp(its LSE - LSE)."""
    keys = torch.arange(given.k.shape[1]).tensor_split(4)
    parts = [_relative_to_lse(given.over(some)) for some in keys]
    lse = torch.stack([part["lse"] for part in parts]).logsumexp(0)
    known = lse.nan_to_num(neginf=0.0)
    weighted = [(part["lse"] - known).exp()[..., None] * part["o"] for part in parts]
    return {"o": torch.stack(weighted).sum(0), "lse": lse}


def _sharp(std: float) -> Segment:
    return segment(std=std, s_k=70, dtype=torch.float32, H=8, s_q=20)


@pytest.mark.parametrize("std", [1.0, 8.0, 100.0])
def test_weights_relative_to_lse_are_within_tolerance_where_declared(std: float) -> None:
    given = _sharp(std)
    whole = _reference(given, "math-fp32[weights:lse]", "fp32")
    assert max(_worst(whole, _relative_to_lse(given)).values()) <= 1
    parts = _reference(given, "online-fp32[weights:lse;splits:4]", "fp32")
    assert max(_worst(parts, _in_four_parts(given)).values()) <= 1


def test_weights_relative_to_lse_have_to_be_declared() -> None:
    given = _sharp(100.0)
    assert _worst(_reference(given, "math-fp32", "fp32"), _relative_to_lse(given))["o"] > 1


def test_weights_relative_to_lse_admit_no_narrower_ones() -> None:
    given = _sharp(8.0)
    found = _outputs([_run("online-fp32[P:fp16]", OnlineDesign(), "fp32").forward(given)])
    assert _worst(_reference(given, "math-fp32[weights:lse]", "fp32"), found)["o"] > 1


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_gradients_are_measured_against_the_products_of_ds(shift: float) -> None:
    given = segment(s_k=128, d_v=32, dtype=torch.bfloat16, empty=False)
    k = given.k.clone()
    k[..., 0] += shift  # common to all keys: dS sums to 0 only up to rounding
    given = replace(given, k=k)
    rng = torch.Generator().manual_seed(3)
    do = torch.randn(textbook(given)[0].shape, generator=rng).bfloat16()
    o, lse = textbook(given)
    exact = _gradients([AttentionBackward()(given, (o, lse), (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-bf16", FORMATS["bf16"])
    reference = attention_gradient_reference(
        [given], [Loss(do, None)], enclosures, _gradients, contract, method="float64"
    )
    other = _run("online64-bf16", OnlineDesign(block=24, direction="backward", base="e"))
    found = _gradients([other.backward(given, other.forward(given), do, None)])
    assert max(_worst(reference, found).values()) <= 1
    narrow = next(iter(rounded_kernels(attention_contract("online64-bf16[dS:e4m3]")).values()))
    wrong = _gradients([narrow.backward(given, narrow.forward(given), do, None)])
    assert _worst(reference, wrong)["dq"] > 1


def test_dS_may_be_stored_with_the_scale_in_it() -> None:
    """cuDNN does so: of a small loss in fp16, a scale of 1/4 takes two bits more of dS."""
    given = segment(s_k=128, d_v=32, dtype=torch.float16, empty=False)
    given = replace(given, scale=0.25)
    do = torch.randn(textbook(given)[0].shape, generator=torch.Generator().manual_seed(3))
    do = (do * 2.0**-12).half()
    exact = _gradients([AttentionBackward()(given, textbook(given), (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-fp16", FORMATS["fp16"])
    reference = attention_gradient_reference(
        [given], [Loss(do, None)], enclosures, _gradients, contract, method="float64"
    )

    def worst(lost: float) -> float:
        """Of kernels that store dS times c and a power of two, and take that out again."""
        run = _run("online64-fp16", OnlineDesign(block=48, base="e", scale="scores"), "fp16")
        o, lse = run.forward(given)
        scaled = replace(given, scale=given.scale * lost)
        small = AttentionBackward(run.design, run.arithmetic, _rescaled(lost))
        dq, dk, _ = small(scaled, (o, lse), (do, None), run.work)
        found = {"dq": dq.double() / lost, "dk": dk.double() / lost}
        return max(_worst(reference, found).values())

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
    exact = _gradients([AttentionBackward()(given, stored, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}

    def worst(contract: str, stages: AttentionBackwardStages) -> float:
        reference = attention_gradient_reference(
            *([given], [Loss(do, None)], enclosures, _gradients),
            attention_contract(contract, FORMATS["fp16"]),
            method="float64",
        )
        design = OnlineDesign(block=48, base="e", d_scores="rounded")
        run = _run("online64-fp16", design, "fp16")
        kernel = AttentionBackward(design, run.arithmetic, stages)
        dq, dk, _ = kernel(given, run.forward(given), (do, None), run.work)
        return max(_worst(reference, {"dq": dq, "dk": dk}).values())

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
    exact = _gradients([AttentionBackward()(given, found, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    contract = attention_contract("online64-bf16", FORMATS["bf16"])
    losses = [Loss(do, None)]
    reference = attention_gradient_reference(
        [given], losses, enclosures, _gradients, contract, method="float64"
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
    assert max(_worst(reference, summed).values()) <= 1


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
    assert _worst(reference, found)["dv"] > 1


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
        found = _gradients([torch.autograd.grad(o, leaves, do)])
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
    found = _gradients([torch.autograd.grad(o, leaves, do)])
    contract = "online64-bf16[product:bf16;PV:bf16]"
    assert max(_port_ratios(given, o, do, found, contract).values()) <= 1


def _port_ratios(
    given: Segment, o: Tensor, do: Tensor, found: dict[str, Tensor], contract: str
) -> dict[str, float]:
    """Errors of o and the gradients, in tolerances."""
    exact = _gradients([AttentionBackward()(given, textbook(given), (do, None), torch.float64)])
    reference = attention_gradient_reference(
        [given],
        [Loss(do, None)],
        {name: enclosed(x) for name, x in exact.items()},
        _gradients,
        attention_contract(contract, FORMATS["bf16"]),
        method="float64",
    )
    return _worst(_reference(given, contract), {"o": o.detach()}) | _worst(reference, found)


@pytest.mark.parametrize("power", [-126, -110])
@pytest.mark.parametrize("seen", [0.0, 2.0**-126])
def test_an_output_of_weights_below_the_smallest_normal_number_may_be_0(
    power: int, seen: float
) -> None:
    """The keys with weight have values of (nearly) 0; the others give o all that it has."""
    given = segment(H=1, h_kv=1, s_q=4, s_k=60, dtype=torch.float32, empty=False)
    q, k, v = torch.zeros_like(given.q), torch.zeros_like(given.k), given.v.clone()
    q[..., 0], k[..., 0] = 1.0, torch.linspace(0, -100, 60) / given.scale
    v[:, torch.linspace(0, -100, 60) / LN2 > power] = seen
    given = replace(given, q=q, k=k, v=v)
    found = textbook(given)
    flushed = torch.full_like(found[0], seen)
    wrong = {"o": flushed.float(), "lse": found[1].float()}
    ratio = _worst(_reference(given, "online-fp32", "fp32"), wrong)["o"]
    assert (ratio <= 1) == (power == -126)


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
    exact = _gradients([AttentionBackward()(given, found, (do, None), torch.float64)])
    enclosures = {name: enclosed(x) for name, x in exact.items()}
    reference = attention_gradient_reference(
        [given],
        [Loss(do, None)],
        enclosures,
        _gradients,
        attention_contract("online-fp32"),
        method="float64",
    )

    def flushed(_run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
        P = recomputed(_run, rows, given)
        return P.masked_fill(P.log2() < power, 0.0)

    stages = AttentionBackwardStages(weights=flushed)
    backward = AttentionBackward(OnlineDesign(), stages=stages)
    wrong = _gradients([backward(given, found, (do, None), torch.float32)])
    assert (max(_worst(reference, wrong).values()) <= 1) == (power == -126)


def test_only_what_is_rounded_to_sixteen_bits_is_compared_with_its_nearest_kernel() -> None:
    reference = _reference(segment(s_k=130, H=8), "seesaw-bf16")
    assert reference.budgets["o"].peers
    assert not reference.budgets["lse"].peers


def _sunk(above: float, *, std: float, s_k: int = 65, seed: int = 0) -> Segment:
    """fp32, with a sink so far above LSE."""
    given = segment(
        std=std, s_q=1, s_k=s_k, H=8, d_v=64, seed=seed, dtype=torch.float32, empty=False
    )
    level = textbook(given)[1].mean(1) + above
    return replace(given, sink=level.bfloat16().float())


def _with_sink(given: Segment) -> Reference:
    o, lse = AttentionPipeline()(given, torch.float64)
    exact = {name: enclosed(x) for name, x in _outputs([(o, lse)]).items()}
    declared = attention_contract("online-fp32")
    return attention_reference([given], exact, _outputs, declared, method="float64")


SINK_FIRST = (
    OnlineDesign(block=16, base="e", scale="scores", fused=False, sink="start"),
    OnlineDesign(block=32, base="e", sink="start", direction="backward"),
    OnlineDesign(block=24, scale="scores", sink="start", splits=4, cut="blocks"),
    OnlineDesign(block=96, base="e", fused=False, sink="start", splits=3, merge="tree"),
)


@pytest.mark.parametrize(
    ("above", "s_k", "std", "seed"),
    [(80.0, 17, 0.0, 1), (80.0, 17, 0.0, 4), (12.0, 17, 0.0, 3), (12.0, 65, 1.0, 1),
     (12.0, 65, 1.0, 2), (12.0, 700, 0.0, 2), (4.0, 700, 0.0, 0)],
)  # fmt: skip
def test_a_maximum_may_begin_with_the_sink(above: float, s_k: int, std: float, seed: int) -> None:
    """All keys of a row share the rounding of the exponent: 4.3 times the tolerance, once."""
    given = _sunk(above, std=std, s_k=s_k, seed=seed)
    reference = _with_sink(given)
    for design in SINK_FIRST:
        found = _outputs([_run("online-fp32", design, "fp32").forward(given)])
        assert max(_worst(reference, found).values()) <= 1


@pytest.mark.parametrize("above", [4.0, 12.0, 80.0])
def test_a_sink_read_in_20_bits_is_over_tolerance(above: float) -> None:
    given = _sunk(above, std=1.0)
    assert given.sink is not None
    read = replace(given, sink=given.sink * (1 + 2.0**-20))
    found = _outputs([_run("online-fp32", OnlineDesign(sink="start"), "fp32").forward(read)])
    assert _worst(_with_sink(given), found)["o"] > 1


@pytest.mark.parametrize(
    ("std", "s_k", "H", "s_q", "seed"),
    [(3.0, 65, 4, 1, 0), (8.0, 17, 4, 4, 3), (8.0, 17, 16, 1, 3)],
)
def test_few_partials_in_16_bits_may_err_by_more_than_many(
    std: float, s_k: int, H: int, s_q: int, seed: int
) -> None:
    given = segment(
        std=std, s_q=s_q, s_k=s_k, H=H, d_v=128, seed=seed, dtype=torch.bfloat16, empty=False
    )
    contract = "online64-bf16[partial_o:bf16]"
    found = _outputs([_run(contract, OnlineDesign(splits=2)).forward(given)])
    assert max(_worst(_reference(given, contract), found).values()) <= 1
    narrower = _run("online64-bf16[partial_o:bf16;P:e4m3]", OnlineDesign(splits=2))
    assert _worst(_reference(given, contract), _outputs([narrower.forward(given)]))["o"] > 1
