"""The words of a declaration, as the command line and options have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.declaration import WORDS, Declaration, declared
from kdaverify.adapters.exchange.declared import kda_adapter
from kdaverify.adapters.exchange.manifest import Manifest
from kdaverify.adapters.exchange.recorder import Recorder
from kdaverify.adapters.registry import find
from tests.adapters.standins import MakeProblem


def test_what_is_not_declared_takes_the_strictest_reading() -> None:
    assert declared({"name": "port"}) == Declaration(name="port")
    adapter = kda_adapter(declared({"name": "port"}), dict)
    assert (adapter.dtypes, adapter.contract("fp32").name, adapter.conventions.packing) == (
        ("fp32",),
        "recurrent-fp32",
        "none",
    )


def test_formats_and_contracts_come_in_lists() -> None:
    adapter = kda_adapter(
        declared(
            {"name": "x", "dtypes": "bf16+fp32", "contract": "fp32=chunk64-fp32+bf16=chunk64-bf16"}
        ),
        dict,
    )
    assert [adapter.contract(dtype).name for dtype in adapter.dtypes] == [
        "chunk64-bf16",
        "chunk64-fp32",
    ]


def test_the_function_gets_what_the_declaration_says() -> None:
    words = {"name": "x", "packing": "segment_ids", "scale": "folded", "initial_state": "no"}
    assert declared(words).keywords == ("segment_ids",)
    assert declared({"name": "x"}).keywords == ("scale", "initial_state")


def test_declared_limits_are_reasons_to_skip_and_widths_are_drawn(
    make_problem: MakeProblem, tmp_path: Path
) -> None:
    declaration = declared({"name": "x", "widths": "64+128", "grouped_heads": "no"})
    adapter = kda_adapter(declaration, dict)
    assert adapter.supports(make_problem(K=64, V=128)) is None
    assert "no K = 8: it takes widths of 64, 128 alone" in str(adapter.supports(make_problem()))
    assert "no 3 value heads a key head (HV = 3, H = 1): it takes 1 alone" in str(
        adapter.supports(make_problem(K=64, V=64, H=1))
    )
    draft = Manifest.draft(declaration, profile="smoke", seed=0)
    assert Recorder(tmp_path, draft).domain.widths == (64, 128)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"scale": "none"}, "scale: wanted one of argument, fixed, folded, got 'none'"),
        ({"padding": "junk"}, "padding: wanted one of zero, undefined"),
        ({"final_state": "maybe"}, "final_state: wanted one of yes, no"),
        ({"layout": "tbhd"}, "layout: wanted one of bthd"),
        ({"dtypes": "fp8"}, "dtypes: wanted some of"),
        ({"contract": "chunk64"}, "contract"),
        ({"contract": "fp32="}, "contract: wanted a preset, or DTYPE=PRESET"),
        ({"widths": "64,x"}, "widths: wanted whole numbers with [+] between, got '64,x'"),
        ({"layout": "thd"}, "packing: layout thd has no batch axis"),
    ],
)
def test_a_wrong_word_is_named(words: dict[str, str], complaint: str) -> None:
    with pytest.raises(AdapterError, match=complaint):
        kda_adapter(declared({"name": "x", **words}), dict)


@pytest.mark.parametrize("spec", ["offline", "elsewhere"])
def test_a_name_without_its_options_says_which_it_needs(spec: str) -> None:
    adapter: Adapter = find(spec)
    assert adapter.dtypes == ()
    assert "it needs" in str(adapter.missing())


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("offline:play=x", "wanted export=DIR or score=DIR"),
        (
            "offline:score=nowhere",
            r"nowhere/manifest.json: no such file; `kdaverify export nowhere` makes",
        ),
        ("elsewhere:kernel=a:b", "elsewhere: no python given; it needs to know where"),
        (
            "elsewhere:python=p,kernel=a",
            "kernel: wanted module:function or path/file.py:function, got 'a'",
        ),
        (
            "elsewhere:python=p,kernel=a:b,framework=mlx",
            "framework: wanted one of torch, jax, numpy, got 'mlx'",
        ),
        (
            "elsewhere:python=p,kernel=a:b,limit=soon",
            "limit: wanted a positive number of seconds, got 'soon'",
        ),
        (
            "elsewhere:python=p,kernel=a:b,color=red",
            f"no option color; it has python, .*{WORDS[-1]}",
        ),
    ],
)
def test_a_wrong_option_is_named(spec: str, complaint: str) -> None:
    with pytest.raises(AdapterError, match=complaint):
        find(spec)
