"""Each fault changes what it names on its trigger; without its patch the kernel conforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.checks.properties import check
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.minimise import failure
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.attention.adapter import adapted
from kdaverify.faults.attention.kernel import AttentionKernel, patched
from kdaverify.faults.catalogue import FAULTS, NOT_RECREATED
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.hosts import host_of
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem

Case = dict[str, Any]
SURVEY = tuple(name for name in FAULTS if name.startswith("attention-"))
ATTENTION = tuple(
    name
    for name in FAULTS
    if name.startswith(("attention-", "SINK-")) and FAULTS[name].operator != "sparse_fp8"
)
"""Those of a quantised cache have tests of their own: test_list_faults.py."""
MOST_REPEATS = 30
"""Random faults strike once in twenty calls, or tiles."""
SHOWN = 1e-3
"""Of the largest element: fp32 kernels agree a thousand times better."""


def _normal(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng)


def decode_case(
    lengths: list[int], *, s_q: int = 2, H: int = 3, page: int = 8, d_k: int = 40, seed: int = 0,
    scale: float = 0.3, shift: float = 0.0, pool: bool = False, falling: bool = False,
    causal: bool = True,
) -> Case:  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    most = max(1, *(-(-n // page) for n in lengths))
    pages = most * len(lengths) + 2
    order = torch.arange(pages).flip(0) if falling else torch.randperm(pages, generator=rng)
    table = torch.full((len(lengths), most), 2147480000, dtype=torch.int32)
    for b, n in enumerate(lengths):
        used = -(-n // page)
        table[b, :used] = order[b * most : b * most + used].int()
    cache = _normal(rng, pages, (2 if pool else 1) * page, 1, d_k)[:, :page]
    cache[..., 0] += shift
    q = _normal(rng, len(lengths), s_q, H, d_k)
    q[..., 0] = 1.0 if not shift else 2000.0
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    return {
        "q": q,
        "cache": cache,
        "block_table": table,
        "cache_seqlens": seqlens,
        "d_v": 32,
        "softmax_scale": scale,
        "causal": causal,
    }


def attention_case(
    s_q: int, s_k: int, *, B: int = 2, H: int = 4, d_k: int = 40, causal: bool = True,
    std: float = 1.0, seed: int = 0,
) -> Case:  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    return {
        "q": std * _normal(rng, B, s_q, H, d_k),
        "k": _normal(rng, B, s_k, 2, d_k),
        "v": _normal(rng, B, s_k, 2, 32),
        "softmax_scale": d_k**-0.5,
        "causal": causal,
    }


def packed_case(lengths_q: list[int], lengths_k: list[int], *, d_k: int = 40) -> Case:
    case = attention_case(sum(lengths_q), sum(lengths_k), B=1, d_k=d_k)
    for name, lengths in (("cu_seqlens_q", lengths_q), ("cu_seqlens_k", lengths_k)):
        case[name] = torch.tensor([0, *lengths]).cumsum(0).int()
    return case


def _expanded() -> Case:
    case = attention_case(5, 33)
    return case | {name: case[name][:1].expand(2, -1, -1, -1) for name in ("k", "v")}


def _one_buffer() -> Case:
    case = attention_case(9, 9, H=2, d_k=32)
    case["causal"] = True
    whole = torch.stack([case["q"], case["k"], case["v"]], 2)
    return case | {name: whole[:, :, n] for n, name in enumerate("qkv")}


def _nan_under_the_mask() -> Case:
    case = attention_case(4, 20)
    case["v"][:, -1] = torch.nan
    return case


def _merge_case() -> Case:
    rng = torch.Generator().manual_seed(0)
    o_a, o_b = _normal(rng, 6, 3, 16), _normal(rng, 6, 3, 16)
    lse_a, lse_b = _normal(rng, 3, 6), _normal(rng, 3, 6)
    lse_b[:, 0] = -torch.inf
    o_b[0] = 0
    return {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}


CASES: dict[str, list[Case]] = {
    "mla_decode": [
        decode_case([5, 70, 33, 9]),
        decode_case([5, 70, 0, 33]) | {"sink": torch.tensor([2.0, -1.0, 4.0])},
        decode_case([70, 300, 129, 1], falling=True, H=20, page=32),
        decode_case([0, 1, 40, 17], pool=True, H=9),
        decode_case([20, 20], shift=-200.0, s_q=1),
        decode_case([200, 90, 150, 33], seed=3),
    ],
    "attention": [
        attention_case(5, 70),
        attention_case(7, 40, seed=1) | {"sink": torch.tensor([2.0, 0.5, 4.0, 9.0])},
        attention_case(5, 40, seed=3) | {"sink": torch.full((4,), -8.0)},
        # logits and a sink above 88, where exponentials of fp32 overflow
        attention_case(20, 20, std=40.0, seed=2) | {"sink": torch.tensor([2.0, 0.5, 4.0, 100.0])},
        attention_case(20, 20, std=40.0),
        attention_case(21, 13),
        attention_case(5, 40, causal=False),
        packed_case([3, 5, 4], [9, 0, 30], d_k=192),
        packed_case([4, 4, 4], [13, 13, 13], d_k=192),
        packed_case([5, 3, 4], [20, 6, 13], d_k=192),
        packed_case([5, 3], [20, 6], d_k=192) | {"sink": torch.tensor([2.0, 0.5, 4.0, 9.0])},
        packed_case([1, 2], [2100, 6]) | {"sink": torch.tensor([2.0, 0.5, 4.0, 9.0])},
        _expanded(),
        _one_buffer(),
        _nan_under_the_mask(),
    ],
    "merge_state": [_merge_case()],
}


def outputs(kernel: AttentionKernel, op: str, case: Case) -> dict[str, Tensor]:
    case = {name: x.clone() if isinstance(x, Tensor) and not _special(x) else x
            for name, x in case.items()}  # fmt: skip
    if op != "attention":
        o, lse = getattr(kernel, op)(**case)
        return {"o": o, "lse": lse} | ({"call": case["cache"]} if op == "mla_decode" else {})
    whole = {name: case[name].detach() for name in ("q", "k", "v", "sink") if name in case}
    leaves = {name: x.requires_grad_() for name, x in whole.items()}
    o, lse = kernel.attention(**{**case, **leaves})
    rng = torch.Generator().manual_seed(9)
    seen = lse.masked_fill(lse == -torch.inf, 0.0)
    loss = (o.nan_to_num() * _normal(rng, *o.shape)).sum() + (
        seen * _normal(rng, *seen.shape)
    ).sum()
    found = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
    gradients = zip((f"d{name}" for name in leaves), found, strict=True)
    return {"o": o.detach(), "lse": lse.detach(), **dict(gradients)}


def _special(x: Tensor) -> bool:
    """Whether how a tensor lies in memory is what a case is about."""
    return 0 in x.stride() or not x.is_contiguous()


def differs(x: Tensor, y: Tensor) -> bool:
    bad = torch.isfinite(x) != torch.isfinite(y)
    size = y[torch.isfinite(y)].abs().max() if bool(torch.isfinite(y).any()) else 1.0
    both = torch.isfinite(x) & torch.isfinite(y)
    return bool(bad.any()) or bool(((x - y).abs()[both] > SHOWN * size).any())


def changed(fault: Fault) -> Iterator[str]:
    """The outputs that differ from the right kernel's, over all cases and repeats."""
    right, wrong = AttentionKernel(), AttentionKernel(fault.patch(Setting(1.0, torch.Generator())))
    wanted_of = [outputs(right, fault.operator, case) for case in CASES[fault.operator]]
    for _ in range(MOST_REPEATS):
        for case, wanted in zip(CASES[fault.operator], wanted_of, strict=True):
            found = outputs(wrong, fault.operator, case)
            yield from (name for name in wanted if differs(found[name], wanted[name]))


@pytest.mark.rotates
@pytest.mark.parametrize("name", ATTENTION)
def test_a_fault_changes_what_it_names(name: str) -> None:
    fault = FAULTS[name]
    lacking = set(fault.outputs)
    for output in changed(fault):
        lacking.discard(output)
        if not lacking:
            break
    assert not lacking


def test_the_survey_has_83() -> None:
    gaps = {gap.id for gap in NOT_RECREATED if gap.id.startswith("attention-")}
    assert len(SURVEY) + len(gaps) == 83
    assert not {*SURVEY} & gaps


@pytest.mark.parametrize("op", CASES)
def test_the_right_kernel_repeats_itself(op: str) -> None:
    for case in CASES[op]:
        first, second = (outputs(AttentionKernel(), op, case) for _ in range(2))
        assert not any(differs(second[name], first[name]) for name in first)


@pytest.mark.parametrize("masked", ["skipped", "multiplied by 0"])
def test_a_tile_that_ends_past_a_request_may_be_read_but_not_multiplied(masked: str) -> None:
    """The pack ends with whole tiles, and with no spare row: the law adds some."""
    fault = FAULTS["attention-M6"]
    kernel = AttentionKernel(patched(tile=64))
    tiled = adapted(kernel.attention, "attention", "in whole tiles")
    adapter = host_of(fault).faulty(fault, 1.0) if masked == "multiplied by 0" else tiled
    pack = AttentionProblem(q_lengths=(3, 2), k_lengths=(5, 64), s_q=5, s_k=69, causal=True)
    found = check("laws", adapter, pack, {"law": "rows-of-nobody"})
    assert any(one.status.rejects for one in found) == (masked == "multiplied by 0")


SMALL = AttentionProblem(B=2, s_q=5, s_k=20, H=6, h_kv=2, d_k=24, d_v=16, causal=True)
DECODE = MlaDecodeProblem(k_lengths=(70, 0, 9), s_q=2, H=6, d_k=24, d_v=16)
SHOWN_BY = {
    "attention-M1": PropertyCase("forward", SMALL),
    "attention-B3": PropertyCase("gradients", SMALL, {"of": "both"}),
    "attention-C5": PropertyCase("forward", DECODE),
}


@pytest.mark.rotates
@pytest.mark.parametrize("name", SHOWN_BY)
def test_the_diagnosis_names_it_first(name: str) -> None:
    fault, case = FAULTS[name], SHOWN_BY[name]
    assert failure(host_of(fault).right(fault), case) is None
    found = diagnose(find(f"fault:{name}"), case, seconds=20.0)
    assert str(found).startswith(f"matches known bug {name}: {fault.title}")
