"""A contract file says what a Contract does: it reads back equal, and what is wrong with one is
reported so that it can be mended.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kdaverify import find, kernel
from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.declaration import declared
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_file import parse_contract, to_toml
from kdaverify.budgets.contract_name import spelled
from kdaverify.budgets.declared import declared_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset, presets
from kdaverify.operator import DEFAULT

NAMES = (
    "recurrent-fp64",
    "chunk64-tf32",
    "chunk64-bf16-anchored-tf32solve-bf16carry-softplus[anchor:first]",
    "chunk16-fp16-fp32factors",
    "chunk64-bf16[accumulator:fp16]",
    "chunk64-bf16[sub_block:8;steps:2]",
    (
        "chunk64-bf16-fp32carry[accumulator:fp64;sub_block:8;flush:never;operand_rounding:truncate;"
        "storage_rounding:truncate;order:in-order;exponential:base-2]"
    ),
    "recurrent-fp32[dp:bf16;p:fp16]",
    "chunk64-fp16[own:left+right;G:fp64;left:fp32]",
    "chunk16-bf16-bf16factors-bf16carry[sub_block:8;scale:rounded;rounded_beta:bf16]",
)
PLAIN = 'form = "chunk"\nchunk_size = 64\noperands = "bf16"\n'


@pytest.mark.parametrize("name", NAMES)
def test_a_contract_reads_back_equal_from_its_name_and_from_its_toml(name: str) -> None:
    contract = contract_from_name(name)
    assert contract_from_name(spelled(contract)) == contract
    assert parse_contract(to_toml(contract), "text").contract(None) == contract
    assert hash(contract_from_name(spelled(contract))) == hash(contract)


def test_names_distinguish_contracts() -> None:
    plain = contract_from_name("chunk64-bf16")
    others = [
        replace(plain, **{key: value})
        for key, value in {
            "chunk_size": 32,
            "operands": FORMATS["fp16"],
            "carry": FORMATS["bf16"],
            "solve": FORMATS["fp32"],
            "factors": FORMATS["fp32"],
            "softplus": True,
            "tensors": (("w", FORMATS["fp32"]),),
            "own": ("x",),
            "accumulator": FORMATS["fp16"],
            "sub_block": 8,
            "flush": "always",
            "operand_rounding": "nearest",
            "storage_rounding": "truncate",
            "order": "in-order",
            "exponential": "natural",
            "transition": "formed",
            "inverse": "series",
        }.items()
    ]
    names = [contract.name for contract in (plain, *others)]
    assert len(set(names)) == len(names)


def test_a_label_is_shown_beside_what_is_declared() -> None:
    found = parse_contract(f'name = "my port"\n{PLAIN}[tensors]\nh = "fp32"\n', "text").contract(
        None
    )
    assert found.name == "my port (chunk64-bf16[h:fp32])"
    assert found == contract_from_name("chunk64-bf16[h:fp32]")
    assert 'name = "my port"' in to_toml(found)


def test_inputs_stand_for_the_format_of_the_inputs() -> None:
    found = parse_contract(
        'form = "chunk"\nchunk_size = 32\noperands = "inputs"\nsolve = "fp32"\n[tensors]\nG ='
        ' "inputs"\n',
        "text",
    )
    assert found.contract("fp16") == contract_from_name("chunk32-fp16-fp32solve[G:fp16]")
    with pytest.raises(ContractError, match="say which it is"):
        found.contract(None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("form =", "no TOML"),
        (PLAIN + "carrry = 'fp32'", "key 'carrry' is not known; did you mean carry"),
        (PLAIN + "colour = 'red'", "the keys are name, about, source, form"),
        (PLAIN + "dh = 'fp32'", r"it is a tensor: put it under \[tensors\]"),
        ('form = "chunk"\nchunk_size = 64', "key 'operands' is missing"),
        (
            PLAIN + "carry = 'fp8'",
            "carry: format 'fp8' is not known; wanted one of fp64, fp32, tf32, bf16, fp16",
        ),
        (
            PLAIN + "[tensors]\nww = 'fp32'",
            "tensor 'ww' is none that the chunk form stores; it stores G, Aqk",
        ),
        (PLAIN + "[tensors]\nS = 'bf16'", "set the carry"),
        (
            PLAIN + "[tensors]\nrounded_beta = 'bf16'",
            "only kernels of factored decays are emulated with it; declare factors too",
        ),
        (PLAIN + "scale = 'bf16'", "scale: wanted one of free, in-q, rounded"),
        (PLAIN + "[tensors]\nw = 'fp9'", "w: format 'fp9'"),
        (PLAIN + "[tensors]\nw = 'tf32'", "nothing is stored in it"),
        (PLAIN + "flush = 'sometimes'", "flush: wanted one of free, always, never"),
        (PLAIN + "sub_block = '16'", "sub_block: input should be a valid integer, got '16'"),
        (
            "form = 'recurrent'\noperands = 'fp32'\nanchored = true",
            "anchored scores are blocks of a chunk",
        ),
        (PLAIN + "anchor = 'middle'", "declare them anchored too"),
        (PLAIN + "solve = 'fp32'\nfactors = 'fp32'", "exclude each other"),
        (PLAIN + "accumulator = 'tf32'", "an accumulator of at least as many bits"),
        (
            PLAIN + "own = ['w']",
            "own tensor 'w': wanted a name that neither the chunk form nor a field has",
        ),
        (PLAIN + "own = ['order']", "own tensor 'order'"),
        ('form = "chunk"\noperands = "bf16"', "chunk_size: wanted tokens per chunk"),
        (
            'form = "recurrent"\nchunk_size = 64\noperands = "fp32"',
            "chunk_size: wanted tokens per chunk",
        ),
        (
            'form = "recurrent"\noperands = "fp32"\noperand_rounding = "truncate"',
            "nothing to round",
        ),
        ('form = "spiral"\noperands = "fp32"', "form: wanted one of recurrent, chunk"),
        (
            'form = "recurrent"\noperands = "fp64"\nexponential = "approximate"',
            "approximate exponential units work in fp32",
        ),
    ],
)
def test_a_file_that_is_no_contract_is_refused_with_what_would_be(text: str, says: str) -> None:
    with pytest.raises(ContractError, match=f"contract my.toml: .*{says}"):
        parse_contract(text, "my.toml")


@pytest.mark.parametrize(
    "name",
    [
        "chunk64-bf16[w]",
        "chunk64-bf16[w:fp9]",
        "chunk64-bf16[w:fp32;w:bf16]",
        "chunk64-bf16[sub_block:x]",
        "fla2",
    ],
)
def test_a_name_that_says_no_contract_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match="contract"):
        declared_contract(name)


def test_a_file_is_taken_wherever_a_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(
        'form = "chunk"\nchunk_size = 32\noperands = "inputs"\n[tensors]\nh = "fp32"\n'
    )
    monkeypatch.chdir(tmp_path)
    wanted = contract_from_name("chunk32-bf16[h:fp32]")

    def run(
        q: object, k: object, v: object, g: object, beta: object, *, initial_state: object
    ) -> None:
        raise NotImplementedError

    for given in (
        "mine.toml",
        str(tmp_path / "mine.toml"),
        tmp_path / "mine.toml",
        {"bf16": "mine.toml"},
    ):
        assert kernel(dtypes=("bf16",), contract=given)(run).contract("bf16") == wanted
    carried = declared({"name": "there", "dtypes": "bf16", "contract": "mine.toml"})
    assert carried.contract == {"bf16": "chunk32-bf16[h:fp32]"}, (
        "where an export is read the file may not be there"
    )
    with pytest.raises(AdapterError, match=r"other\.toml: cannot be read"):
        kernel(dtypes=("bf16",), contract="other.toml")(run)


def test_a_file_beside_the_kernel_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAIN + '[tensors]\nh = "fp32"\n')
    (tmp_path / "port.py").write_text(
        "import kdaverify as kv\n"
        '@kv.kernel(contract="mine.toml", dtypes=("bf16",))\n'
        "def port(q, k, v, g, beta, *, initial_state): ...\n"
    )  # fmt: skip
    assert find(f"{tmp_path / 'port.py'}").contract("bf16") == contract_from_name(
        "chunk64-bf16[h:fp32]"
    )


SHARED = {
    "fla": "fla-interpreted",
    "triton_npu-recurrent": "fla-recurrent",
    "fla-gdn": "gdn64",
    "fla-gdn-recurrent": "fla-recurrent",
    "fla-delta": "gdn64",
    "fla-delta-recurrent": "fla-recurrent",
    "fla-delta-product": "gdn64",
    "fla-delta-product-grouped": "gdn64",
    "onnxruntime-gdn": "onnxruntime",
    "onnxruntime-delta": "onnxruntime",
    "vllm-kda": "vllm-kda-interpreted",
}
"""Contracts that an implementation has in common with another."""


def test_every_implementation_that_ships_a_contract_declares_its_file() -> None:
    # What emulates a design is declared by the design.
    for name in (
        name for name in SHIPPED if not name.startswith("emulated:") and find(name).op == DEFAULT
    ):
        adapter = find(name)
        for dtype in adapter.dtypes:
            file, declared = SHARED.get(name, name), adapter.contract(dtype)
            # A contract without a file is all that its name says.
            wanted = preset(file, dtype) if file in presets() else contract_from_name(declared.name)
            # Its conventions say what it receives.
            received = replace(declared, gate=wanted.gate, beta=wanted.beta, qk=wanted.qk)
            assert received == wanted, f"{name} {dtype}"


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_shipped_file_says_what_it_is_of_and_where_that_is_known_from(name: str) -> None:
    file = presets()[name]
    assert file.about
    assert file.source
    assert isinstance(file.contract("bf16"), Contract)
