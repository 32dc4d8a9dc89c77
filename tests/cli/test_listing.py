"""`kdaverify list` names what there is, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest

import kdaverify
from kdaverify.adapters.registry import find
from kdaverify.checks.calls.questions import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.cli import listing
from kdaverify.cli.request import Request
from kdaverify.cli.run import _misuse  # pyright: ignore[reportPrivateUsage]
from kdaverify.operator import OPERATORS, CallOperator, operator_named, problem_from_json
from kdaverify.problems import REGIMES, Problem
from tests.operators.toy import TOY

WIDTH: Final = 120
Cli = Callable[..., tuple[int, str, str]]
JUDGES: Final = {
    "short_conv": "torch-short-conv",
    "gated_rms_norm": "torch-gated-norm",
    "attention": "eager-attention",
    "mla_decode": "eager-mla-decode",
    "sparse_attention": "eager-sparse-attention",
    "merge_state": "eager-merge",
    "layer": "transformers-qwen3-next-layer",
}
"""An implementation that ships, of operators that eager does not have."""


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("impls", "eager"),
        ("impls", "onnxruntime"),
        ("ops", "kda"),
        ("ops", "gate_softplus"),
        ("ops", "sparse_attention"),
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


@pytest.mark.parametrize(
    "what",
    [
        "impls",
        "ops",
        "regimes",
        "profiles",
        "laws",
        "probes",
        "calls",
        "faults",
        "planted",
        "standards",
    ],
)
def test_a_list_is_one_line_an_item_and_names_all_of_them(cli: Cli, what: str) -> None:
    names = [entry["name"] for entry in json.loads(cli("list", what, "--json")[1])]
    *lines, last = cli("list", what)[1].splitlines()
    assert [line.split()[0] for line in lines] == names
    assert last.startswith(f"{len(names)} {what}; in full:")
    assert max(map(len, lines)) <= WIDTH


def test_every_operator_is_listed_with_what_it_computes(cli: Cli) -> None:
    listed = {
        entry["name"]: entry["about"] for entry in json.loads(cli("list", "ops", "--json")[1])
    }
    assert {*listed} == {*OPERATORS} and all(
        about for name, about in listed.items() if name != TOY.name
    )


def test_an_item_by_name_is_shown_in_full(cli: Cli) -> None:
    [fault] = [
        entry for entry in json.loads(cli("list", "faults", "--json")[1]) if entry["name"] == "H1"
    ]
    shown = " ".join(cli("list", "faults", "H1")[1].split())
    for said in (fault["title"], fault["trigger"], fault["reference"], "final_state"):
        assert said in shown
    assert json.loads(cli("list", "faults", "H1", "--json")[1]) == [fault]


def test_a_regime_of_two_axes_is_shown_twice(cli: Cli) -> None:
    assert [
        line.split()[1]
        for line in cli("list", "regimes", "random")[1].splitlines()
        if line.startswith("axis")
    ] == ["key", "state"]


def test_a_name_that_there_is_not_gets_the_nearest_ones(cli: Cli) -> None:
    code, _, err = cli("list", "faults", "H0")
    assert code == 2 and "no 'H0' among faults; did you mean " in err


def test_extras_of_a_package_are_no_markup(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = "not installed: pip install 'kdaverify[fla]'"
    found = [{"name": "mine", "origin": "shipped", "dtypes": ["fp32"], "missing": needs}]
    # one that lacks a package
    lists = listing._LISTS  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(lists, listing.What.IMPLS, lambda: found)
    assert needs in cli("list", "impls")[1] and needs in cli("list", "impls", "mine")[1]


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    assert cli("--version") == (0, f"kdaverify {kdaverify.__version__}\n", "")


def test_completion_offers_what_is_loaded_at_first_use() -> None:
    assert {"kernel", "Problem", "find", "__version__"} <= {*dir(kdaverify)}


def test_the_example_is_a_problem_that_the_schema_describes(cli: Cli) -> None:
    code, example, _ = cli("problem", "--example")
    assert code == 0 and Problem.from_json(example).to_json() == json.dumps(
        json.loads(example), sort_keys=True, separators=(",", ":")
    )
    fields = json.loads(cli("problem", "--schema")[1])["properties"]
    assert {*fields} == {*Problem.model_fields} and all(
        field["description"] for field in fields.values()
    )
    for axis, regimes in REGIMES.items():
        assert fields[axis]["enum"] == [*regimes]


@pytest.mark.parametrize("op", [op for op in OPERATORS if op != TOY.name])
def test_every_operator_has_an_example_that_can_be_judged(cli: Cli, op: str) -> None:
    code, example, _ = cli("problem", "--example", "--op", op)
    made = problem_from_json(example)
    assert code == 0 and made.op == op
    operator = operator_named(op)
    whole = "forward" if isinstance(operator, CallOperator) else "activations"
    # A layer has no oracle.
    tested, detail = ("laws", {"law": "cut"}) if op == "layer" else (whole, {})
    found = check(tested, find(JUDGES.get(op, "eager")), made, detail)
    assert {outcome.status for outcome in found} == {Status.PASS}


def test_an_operator_that_came_with_a_port_says_where_to_find_an_example(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPERATORS, TOY.name, TOY)
    assert f"there is none for {TOY.name}" in cli("problem", "--example", "--op", TOY.name)[2]


def test_other_operators_have_a_schema_too(cli: Cli) -> None:
    assert (
        "rates" in json.loads(cli("problem", "--schema", "--op", "gate_softplus")[1])["properties"]
    )
    assert cli("problem", "--schema", "--op", "nothing")[2].startswith(
        "kdaverify: --op: wanted one of kda, "
    )


def test_a_problem_needs_to_be_reported_which_of_the_two(cli: Cli) -> None:
    assert "wanted --example or --schema, got neither" in cli("problem")[2]


@pytest.mark.parametrize(
    ("spec", "said"),
    [("elsewhere", "python="), ("offline", "kdaverify export DIR"), ("fla_port", "module=MODULE")],
)
def test_an_implementation_that_needs_options_lists_them(spec: str, said: str) -> None:
    found = _misuse(
        Request(
            impls=(spec,),
            profile="smoke",
            seed=None,
            record=None,
            json_file=None,
            workers="0",
            require_impl=False,
        )
    )
    assert found is not None and found.startswith(f"--impl: {spec}: ") and said in found
    assert [*questions(find(spec), "smoke")] == []


@pytest.mark.parametrize(
    "words",
    [
        ["list", "lawz"],
        ["list"],
        ["verfy"],
        ["verify", "--time-limit", "0"],
        ["verify", "--workers", "many"],
        ["oracle"],
    ],
)
def test_misuse_is_one_line_and_exit_code_2(cli: Cli, words: list[str]) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert err.startswith("kdaverify: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "verb",
    [
        "verify",
        "replay",
        "oracle",
        "list",
        "problem",
        "gate",
        "report",
        "merge",
        "diagnose",
        "campaign",
    ],
)
def test_every_verb_has_a_help_page_with_an_example(cli: Cli, verb: str) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert f"kdaverify {verb}" in out


def test_an_unknown_list_is_refused_in_the_command_lines_own_words(cli: Cli) -> None:
    code, _, said = cli("list", "suites")
    assert code == 2 and "'suites' is not one of 'impls'" in said and "Value error" not in said
