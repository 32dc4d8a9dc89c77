"""`kdaverify contracts` lists what ships and spells any contract out, for people, for programs and
as a file to start from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.contract_file import parse_contract
from kdaverify.budgets.presets import presets
from kdaverify.operator import OPERATORS, operator_named
from kdaverify.operators.bounded import BoundedOperator

Cli = Callable[..., tuple[int, str, str]]
MINE = (
    'name = "mine"\nabout = "a port"\nform = "chunk"\nchunk_size = 32\noperands ='
    ' "inputs"\n[tensors]\nh = "fp32"\ndw = "fp32"\n'
)


def test_every_shipped_contract_is_listed(cli: Cli) -> None:
    listed = [entry["name"] for entry in json.loads(cli("contracts", "list", "--json")[1])]
    assert listed[: len(presets())] == list(presets())
    table = cli("contracts", "list")[1]
    assert all(name in table for name in listed)


def test_a_contract_is_shown_stage_by_stage_with_the_format_of_every_tensor(cli: Cli) -> None:
    shown = json.loads(cli("contracts", "show", "chunk64-bf16-tf32solve[h:fp32]", "--json")[1])
    stages = {stage["stage"]: stage for stage in (*shown["forward"], *shown["backward"])}
    assert list(stages)[:6] == ["cumsum", "scores", "solve", "wy", "state", "output"]
    assert stages["state"]["stores"] == {"h": "fp32", "v_new": "bf16", "S": "fp32"}
    assert stages["state"]["declared"] == ["h"]
    assert (
        stages["solve"]["operands"],
        stages["wy"]["operands"],
        stages["output"]["stores"]["o"],
    ) == ("tf32", "bf16", "inputs")
    assert "library order" in shown["family"]["forward"]


def test_a_name_for_several_formats_is_shown_for_one_of_them(cli: Cli) -> None:
    for dtype, options in {"bf16": (), "fp16": ("--dtype", "fp16")}.items():
        shown = json.loads(cli("contracts", "show", "gdn64", *options, "--json")[1])
        named = json.loads(cli("contracts", "show", f"gdn64-{dtype}", "--json")[1])
        assert (shown["dtype"], shown["name"]) == (dtype, named["name"])


def test_contracts_of_every_operator_are_listed_and_shown(cli: Cli) -> None:
    listed = {entry["name"]: entry for entry in json.loads(cli("contracts", "list", "--json")[1])}
    for name in list(listed)[len(presets()) :]:
        shown = json.loads(cli("contracts", "show", name, "--json")[1])
        assert (shown["name"], shown["about"]) == (name, listed[name]["about"])
    ours = [one for one in map(operator_named, OPERATORS) if isinstance(one, BoundedOperator)]
    assert all(f"{one.name}" in str(listed) for one in ours)


def test_a_contract_of_attention_is_shown_key_by_key(cli: Cli) -> None:
    shown = json.loads(cli("contracts", "show", "online64-fp16[partial_o:fp16]", "--json")[1])
    keys = {key["key"]: key["value"] for key in shown["keys"]}
    assert (shown["dtype"], keys["splits"], keys["dS"]) == ("fp16", "8", "fp16")
    assert (keys["partial_o"], keys["partial_lse"]) == ("fp16", "fp32")
    assert "most splits" in shown["kernels"]
    out = cli("contracts", "show", "online64-bf16")[1]
    assert "P as the product for dv takes it" in out


@pytest.mark.parametrize(
    ("name", "op", "key", "value"),
    [
        ("impl:eager-mla-decode", "mla_decode", "form", "math"),
        ("short-conv+partials", "short_conv", "partial sums of gradients of parameters", "bf16"),
    ],
)
def test_a_contract_of_an_operator_shows_what_it_declares(
    cli: Cli, name: str, op: str, key: str, value: str
) -> None:
    shown = json.loads(cli("contracts", "show", name, "--json")[1])
    assert shown["about"] == f"of {op}"
    assert {"key": key, "value": value} in [
        {"key": one["key"], "value": one["value"]} for one in shown["keys"]
    ]
    assert cli("contracts", "show", name)[0] == 0


def test_the_tables_hold_the_same_at_a_hundred_columns(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = cli("contracts", "show", "chunk64-bf16-tf32solve[h:fp32]")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    for cell in (
        "h*:fp32",
        "v_new:bf16",
        "dG_state:fp32",
        "tf32, on the diagonal fp32",
        "library order",
        "state carried in",
    ):
        assert cell in out


def test_a_file_of_ones_own_is_shown_for_the_inputs_that_are_tested_for(cli: Cli) -> None:
    Path("mine.toml").write_text(MINE)
    shown = json.loads(cli("contracts", "show", "mine.toml", "--dtype", "fp16", "--json")[1])
    assert (shown["name"], shown["about"]) == ("mine (chunk32-fp16[dw:fp32;h:fp32])", "a port")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("impl:transformers-chunk",), "chunk64-fp32"),
        (("impl:eager", "--dtype", "fp16"), "chunk64-fp16"),
        (("fla", "--dtype", "fp32"), "chunk64-tf32"),
        (("eager",), "chunk64-bf16"),
        (("chunk64-bf16[dh:fp32]",), "chunk64-bf16[dh:fp32]"),
        (("impl:port.py",), "recurrent-fp32"),
    ],
)
def test_what_is_written_as_toml_is_what_was_tested_for(
    cli: Cli, words: tuple[str, ...], name: str
) -> None:
    code, out, _ = cli("contracts", "show", *words, "--toml")
    assert code == 0
    assert parse_contract(out, "shown").contract(None) == contract_from_name(name)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("flaa",), "a shipped contract such as 'fla'"),
        (("none.toml",), "none.toml: cannot be read"),
        (("impl:nope",), "names of `kdaverify list impls`"),
        (("impl:fla_port",), "not configured, so it takes no inputs"),
        (("impl:onnxruntime", "--dtype", "bf16"), "takes fp32, fp16"),
        (("eager", "--dtype", "int8"), "wanted one of fp64"),
        (("eager", "--toml", "--json"), "wanted one of them"),
        (("online64-bf16[Q:bf16]",), "'Q' is no key; the keys are lazy"),
        (("online64-bf17",), "did you mean 'online64-bf16'"),
        (("short-conv+x",), "with any of +tanh, +partials"),
        (("online-fp32", "--dtype", "fp64"), "takes fp32, bf16, fp16"),
        (("online64-bf16", "--dtype", "fp16"), "operands in bf16, the inputs are fp16"),
        (("online-fp32", "--toml"), "contracts by name alone"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_shown_is_one_line_that_says_why(
    cli: Cli, words: tuple[str, ...], says: str
) -> None:
    code, out, err = cli("contracts", "show", *words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["list", "show"])
def test_help_has_an_example(cli: Cli, verb: str) -> None:
    code, out, _ = cli("contracts", verb, "--help")
    assert code == 0
    assert f"kdaverify contracts {verb}" in out
