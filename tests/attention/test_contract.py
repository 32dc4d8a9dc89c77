"""Names and TOML of attention contracts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import AdapterError
from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.attention.ensemble import rounded_kernels
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.attention.tolerance import counted
from oracles.attention.calls import AttentionCall
from tests.attention.segments import segment


def test_a_name_says_block_and_the_format_of_p() -> None:
    found = attention_contract("online64-bf16")
    assert (found.block, found.storage("P").name, found.storage("lse").name) == (64, "bf16", "fp32")
    assert found.storage("partial_o").name == "fp32" and found.storage("o").name == "bf16"


def test_math_in_fp32_rounds_only_what_it_returns() -> None:
    found = attention_contract("math-fp32", FORMATS["bf16"])
    assert found.storage("P").name == "fp32" and found.storage("o").name == "bf16"


def test_brackets_declare_numbers_words_and_tensors() -> None:
    found = attention_contract("online32-fp16[partial_o:inputs;lazy:8;splits:4;scale:q]")
    assert (found.block, found.lazy, found.splits, found.scale) == (32, 8, 4, "q")
    assert found.storage("partial_o").name == "fp16"


def test_every_key_is_described_and_every_described_key_can_be_declared() -> None:
    described = attention_contract("online64-bf16").described()
    assert all(meaning for _, _, meaning in described)
    for key, value, _ in described[2:]:
        found = attention_contract(f"online64-bf16[{key}:{value}]")
        assert found.described() == described, key


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("online64-bf17", "did you mean 'online64-bf16'"),
        ("online64-bf16[S]", "wanted KEY:VALUE"),
        ("online64-bf16[Q:bf16]", "the keys are"),
        ("online64-bf16[lazy:x]", "wanted a number"),
        ("online64-fp16[lazy:24]", "65504 is the largest; wanted at most 15"),
        ("online64-bf16[scale:k]", "wanted one of free, q"),
        ("online64-bf16[P:fp9]", "wanted one of fp32"),
        ("online64-bf16[weights:max]", "wanted one of maximum, lse"),
        ("seesaw-bf16[weights:lse]", "is for online and math"),
    ],
)
def test_a_wrong_name_is_explained(name: str, wanted: str) -> None:
    with pytest.raises(ContractError, match=wanted.replace("[", r"\[")):
        attention_contract(name)


def test_a_decorator_takes_any_contract_by_its_name() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
        raise NotImplementedError

    def declared(name: str, *dtypes: str) -> AttentionContract:
        made = kv.kernel(op="attention", lse="none", contract=name, dtypes=dtypes)(attend)
        return made.contract(dtypes[0])

    assert declared("online64-bf16[PV:bf16]", "bf16").storage("PV").name == "bf16"
    assert declared("math-fp32", "bf16", "fp16").storage("o").name == "bf16"
    with pytest.raises(AdapterError, match="contract for each dtype"):
        declared("online64-bf16[PV:bf16]", "bf16", "fp16")
    with pytest.raises(AdapterError, match="the keys are"):
        declared("online64-bf16[VP:bf16]", "bf16")


@pytest.mark.parametrize("stored", ["product:bf16", "S:bf16", "scale:q;q_scaled:bf16"])
def test_bounds_have_the_roundings_of_scores(stored: str) -> None:
    """A law holds LSE of one key against its logit, within them."""
    given = segment(H=4, s_q=5, s_k=1, dtype=torch.bfloat16, empty=False)
    given = replace(given, visible=torch.ones_like(given.visible))
    call = AttentionCall(
        *(x.transpose(0, 1)[None] for x in (given.q, given.k, given.v)),
        softmax_scale=given.scale,
    )
    contract = attention_contract(f"online64-bf16[{stored}]")
    lse = next(iter(rounded_kernels(contract).values())).forward(given)[1]
    value, error = counted(call, None, contract, FORMATS["bf16"])["lse"]
    assert bool(((lse - value[0]).abs() <= error.bound[0]).all())
    _, plain = counted(call, None, attention_contract("online64-bf16"), FORMATS["bf16"])["lse"]
    assert bool(((lse - value[0]).abs() > plain.bound[0]).any())
