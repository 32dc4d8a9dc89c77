"""`kdaverify mailboxes`: tables for people, JSON for programs, a sentence for every misuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
SMALL = ("--tokens", 64, "--width", 8, "--regimes", "zero", "--most", 4)


def test_a_search_prints_its_front_and_writes_it(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        "mailboxes",
        "--pipeline",
        "triton_npu_state",
        *SMALL,
        "--json",
        "found.json",
        "--plot",
        "front.svg",
    )
    assert code == 0, out
    for words in (
        "forward: Pareto front",
        "backward: Pareto front",
        "fewest bytes within 1x tolerance",
        "carried in bf16: drifts",
    ):
        assert words in out
    forward, backward = json.loads((tmp_path / "found.json").read_text())["studies"]
    assert forward["best"]["bytes"] < forward["wide"]["bytes"]
    assert {single["mailbox"] for single in forward["singles"]} == {
        "h",
        "residual",
        "v_gated",
        "S_delta",
    }
    assert backward["part"] == "backward"
    assert (tmp_path / "front.svg").read_text().startswith("<svg")


def test_a_regime_out_of_reach_is_named_and_nothing_is_accepted(cli: Cli) -> None:
    code, out, _ = cli("mailboxes", "--pipeline", "ascend_v3", *SMALL[:4], "--regimes", "deep")
    assert code == 1
    assert "deep: K_div overflows whatever the mailboxes hold" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--pipeline", "v4"),
        ("--pipeline", "ascend_v3", "--regimes", "stormy"),
        ("--pipeline", "ascend_v3", "--contract", "chunk64"),
        (
            "--pipeline",
            "ascend_v3",
            "--proposals",
            "--tokens",
            "64",
            "--width",
            "8",
            "--regimes",
            "zero",
        ),
    ],
)
def test_misuse_is_one_line(cli: Cli, words: tuple[str, ...]) -> None:
    code, out, err = cli("mailboxes", *words)
    assert (code, out) == (2, "")
    assert err.startswith("kdaverify: ")
    assert err.count("\n") == 1


def test_the_help_page_has_an_example(cli: Cli) -> None:
    code, out, _ = cli("mailboxes", "--help")
    assert code == 0
    assert "kdaverify mailboxes --pipeline ascend_v3" in out
