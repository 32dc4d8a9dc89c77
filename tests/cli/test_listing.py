"""`kdaverify list` names what there is, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("impls", "eager"),
        ("impls", "onnxruntime"),
        ("ops", "kda"),
        ("ops", "gate_softplus"),
        ("regimes", "hard-reset"),
        ("profiles", "smoke"),
        ("profiles", "nightly"),
        ("faults", "H1"),
        ("faults", "SO3"),
        ("standards", "ascend-L1"),
        ("standards", "fla-ci"),
        ("probes", "nine-bit-state"),
        ("laws", "other-heads"),
        ("laws", "resume"),
        ("calls", "view-sliced"),
    ],
)
def test_json_is_a_list_of_objects_with_a_name(cli: Cli, what: str, some: str) -> None:
    code, out, _ = cli("list", what, "--json")
    assert code == 0
    assert some in [entry["name"] for entry in json.loads(out)]


@pytest.mark.parametrize("what", ["impls", "ops", "regimes", "profiles", "laws", "probes", "calls", "faults", "planted", "standards"])
def test_the_table_holds_the_same_names(cli: Cli, what: str) -> None:
    names = [entry["name"] for entry in json.loads(cli("list", what, "--json")[1])]
    table = cli("list", what)[1]
    assert all(name in table for name in names)


def test_the_table_of_faults_says_where_each_was_seen(cli: Cli) -> None:
    table = "".join(cli("list", "faults")[1].replace("│", " ").split())
    references = [entry["reference"] for entry in json.loads(cli("list", "faults", "--json")[1])]
    assert references and all(reference.split("#")[0].split("@")[0].split(" ")[0].split("/")[0] in table for reference in references)


@pytest.mark.parametrize(
    "words", [["list", "lawz"], ["list"], ["verfy"], ["verify", "--time-limit", "0"], ["verify", "--workers", "many"], ["oracle"]]
)
def test_misuse_is_one_line_and_exit_code_2(cli: Cli, words: list[str]) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert err.startswith("kdaverify: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["verify", "replay", "oracle", "list"])
def test_every_verb_has_a_help_page_with_an_example(cli: Cli, verb: str) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert f"kdaverify {verb}" in out
