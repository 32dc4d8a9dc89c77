"""`kdaverify splits`: a schedule in integers, tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
WRITTEN = ("--json", "found.json", "--plot", "splits.svg")
SMALL = ("--regimes", "peaked", "--keys", 300)


def test_a_study_prints_its_tables_and_writes_them(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("splits", "--lengths", "640,1,70", *SMALL, *WRITTEN)
    assert code == 0, out
    for words in (
        "schedule on 132 SMs: 66 parts",
        "requests",
        "by number of splits",
        "by regime",
        "order of the merge",
        "online64-bf16 admits partials in: fp32",
    ):
        assert words in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert "fp32" in found["admitted"]
    assert "bf16" not in found["admitted"], "partials in bf16 are over a contract of fp32 ones"
    assert "fp32, lse bf16" not in found["admitted"]
    assert (tmp_path / "splits.svg").read_text().count("<polyline") == 4


def test_a_contract_of_bf16_partials_admits_them(cli: Cli, tmp_path: Path) -> None:
    contract = ("--contract", "online64-bf16[partial_o:bf16]")
    code, out, _ = cli("splits", "--lengths", "70", *SMALL, *contract, "--json", "found.json")
    assert code == 0, out
    assert f"{contract[1]} admits partials in: fp32; fp16; bf16" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert {"fp32", "fp16", "bf16"} <= {*found["admitted"]}
    assert "fp32, lse bf16" not in found["admitted"]


@pytest.mark.parametrize(
    "words",
    [
        ("--lengths", "8192;1"),
        ("--lengths", "1", "--regimes", "stormy"),
        ("--lengths", "1", "--contract", "online64"),
        ("--lengths", "1", "--contract", "online64-tf32"),
        ("--lengths", "1", "--contract", "online-fp32[splits:1]"),
    ],
)
def test_misuse_is_one_line(cli: Cli, words: tuple[str, ...]) -> None:
    code, out, err = cli("splits", *words)
    assert (code, out) == (2, "")
    assert err.startswith("kdaverify: ")
    assert err.count("\n") == 1
