"""Names and TOML of attention contracts."""

from __future__ import annotations

import pytest

from kdaverify.budgets.attention.contract import attention_contract, attention_contract_from_toml
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS


def test_a_name_says_block_and_the_format_of_p() -> None:
    found = attention_contract("online64-bf16")
    assert (found.block, found.storage("P").name, found.storage("lse").name) == (64, "bf16", "fp32")
    assert found.storage("partial_o").name == "fp32" and found.storage("o").name == "bf16"


def test_math_in_fp32_rounds_only_what_it_returns() -> None:
    found = attention_contract("math-fp32", FORMATS["bf16"])
    assert found.storage("P").name == "fp32" and found.storage("o").name == "bf16"


def test_brackets_and_toml_declare_the_same() -> None:
    name = attention_contract("online32-fp16[partial_o:fp16;lazy:8;splits:4;scale:q]")
    text = (
        'form = "online"\nblock = 32\noperands = "inputs"\nlazy = 8\nsplits = 4\nscale = "q"\n'
        '[tensors]\npartial_o = "inputs"\n'
    )
    toml = attention_contract_from_toml(text, name.name, FORMATS["fp16"])
    assert toml == name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("online64-bf17", "did you mean 'online64-bf16'"),
        ("online64-bf16[S]", "wanted KEY:VALUE"),
        ("online64-bf16[Q:bf16]", "the keys are"),
        ("online64-bf16[lazy:x]", "wanted a number"),
        ("online64-bf16[scale:k]", "wanted one of free, q"),
        ("online64-bf16[P:fp9]", "wanted one of fp32"),
    ],
)
def test_a_wrong_name_is_explained(name: str, wanted: str) -> None:
    with pytest.raises(ContractError, match=wanted.replace("[", r"\[")):
        attention_contract(name)
