"""Preset names say what is rounded where; a name that means nothing is refused with the grammar."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS, format_of, truncate_tf32

FP32, BF16 = FORMATS["fp32"], FORMATS["bf16"]
NAMES = (
    "recurrent-fp32",
    "recurrent-fp64",
    "chunk64-fp64",
    "chunk64-fp32",
    "chunk64-tf32",
    "chunk64-bf16",
    "chunk64-fp16",
    "chunk32-bf16",
    "chunk128-bf16",
    "chunk16-bf16-bf16carry",
    "chunk64-bf16-tf32solve",
    "chunk64-fp16-fp32solve",
    "chunk64-fp16-anchored-tf32solve",
    "chunk64-bf16-tf32solve-softplus",
    "chunk32-fp32-fp32factors",
    "chunk64-tf32-fp32factors",
    "chunk16-bf16-fp32factors",
    "chunk16-bf16-bf16factors-bf16carry",
)

MEANINGLESS = (
    "recurrent-fp32-fp32solve",
    "chunk64-fp32-tf32solve",
    "chunk64-fp32-bf16factors",
    "chunk64-bf16-fp64solve",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_named_as_it_was_tested_for(name: str) -> None:
    assert contract_from_name(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "chunk-bf16",
        "chunk64",
        "chunk64-int8",
        "chunk0-fp32",
        "recurrent64-fp32",
        "chunk64-bf16-carry",
        "",
        *MEANINGLESS,
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match="contract"):
        contract_from_name(name)


def test_what_is_stored_in_which_format() -> None:
    contract = contract_from_name("chunk64-bf16")
    assert [contract.storage(t, BF16).name for t in ("G", "S", "w", "R", "h", "o")] == [
        "fp32",
        "fp32",
        "bf16",
        "bf16",
        "bf16",
        "bf16",
    ]
    assert contract_from_name("chunk16-bf16-bf16carry").storage("S", BF16) is BF16
    assert contract_from_name("recurrent-fp32").storage("u", BF16) is FP32
    assert contract_from_name("recurrent-fp32").storage("o", BF16) is BF16
    assert contract_from_name("chunk64-tf32").storage("w", FP32) is FP32
    assert contract_from_name("chunk64-bf16-tf32solve").storage("Akk", BF16) is FP32
    assert contract_from_name("chunk64-bf16-tf32solve").storage("R", BF16) is BF16
    assert contract_from_name("chunk16-bf16-fp32factors").storage("factor", BF16) is FP32
    assert contract_from_name("chunk16-bf16-bf16factors").storage("factor", BF16) is BF16


def test_matrix_units_truncate_what_nobody_rounded() -> None:
    value = torch.tensor([1 + 2**-10 + 2**-11 + 2**-12, -(1 + 2**-11)], dtype=torch.float32)
    assert truncate_tf32(value).tolist() == [1 + 2**-10, -1.0]


@pytest.mark.parametrize(
    ("name", "kept", "lost"),
    [
        ("bf16", 1 + 2**-7, 1 + 2**-9),
        ("tf32", 1 + 2**-10, 1 + 2**-12),
        ("fp16", 1 + 2**-10, 1 + 2**-12),
    ],
)
def test_a_format_keeps_its_bits_and_no_more(name: str, kept: float, lost: float) -> None:
    rounded = FORMATS[name].round(torch.tensor([kept, lost], dtype=torch.float32))
    assert rounded.tolist() == [kept, 1.0]
    assert rounded.dtype is torch.float32


def test_rounding_to_a_wider_format_changes_nothing() -> None:
    value = torch.tensor([1 + 2**-7], dtype=torch.bfloat16)
    assert FP32.round(value) is value


def test_a_dtype_that_is_not_judged_is_named() -> None:
    with pytest.raises(TypeError, match="int32"):
        format_of(torch.int32)


def test_a_tensor_may_be_stored_in_a_format_of_its_own() -> None:
    plain = contract_from_name("chunk64-bf16")
    contract = plain.storing(w=FP32, dG_state=BF16).storing(h=FP32)
    assert [contract.storage(t, BF16).name for t in ("w", "h", "dG_state", "u")] == [
        "fp32",
        "fp32",
        "bf16",
        "bf16",
    ]
    assert contract == plain.storing(h=FP32, dG_state=BF16, w=FP32)
    assert {contract.name, plain.name} == {
        "chunk64-bf16[dG_state:bf16;h:fp32;w:fp32]",
        "chunk64-bf16",
    }
    assert len({contract, plain}) == 2


@pytest.mark.parametrize(
    ("preset", "tensor", "says"),
    [
        ("chunk64-bf16", "ww", "it stores G, Aqk, .* dAqk, .* dg"),
        ("recurrent-fp32", "w", "it stores decayed, p, u, .* dp"),
        ("chunk64-bf16", "S", "set the carry"),
        ("chunk64-bf16", "o", "format of the inputs"),
    ],
)
def test_a_tensor_that_has_no_format_to_choose_is_refused(
    preset: str, tensor: str, says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        contract_from_name(preset).storing(**{tensor: FP32})


def test_a_pipeline_may_store_tensors_of_its_own() -> None:
    contract = replace(contract_from_name("chunk64-bf16"), own=("band",)).storing(band=FP32)
    assert contract.storage("band", BF16) is FP32
    assert contract.named_tensors[-1] == "band"
