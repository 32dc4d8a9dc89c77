"""A suite that no implementation can be tested on is named before a session begins, for every
operator.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kdaverify.adapters.registry import find
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.plugin.suite_files import shipped, untestable

OF_OPERATOR = (
    "eager",
    "torch-short-conv",
    "torch-gated-norm",
    "transformers-kimi-layer",
    "eager-attention",
    "eager-mla-decode",
    "eager-sparse-attention",
    "eager-merge",
)


@pytest.mark.parametrize("name", OF_OPERATOR)
def test_a_suite_that_the_operator_has_not_is_answered_with_those_it_has(name: str) -> None:
    adapter = find(name)
    suites = shipped(adapter.op)
    for one in PROPERTIES.keys() - suites:
        said = untestable(one, [adapter], "smoke")
        assert said is not None and said.startswith(f"no suite {one!r} of {adapter.op}; the suites")
        assert {*said.partition(" are ")[2].split(", ")} == suites


@pytest.mark.parametrize("name", OF_OPERATOR)
def test_a_suite_of_the_operator_is_tested_unless_the_declaration_leaves_it_out(name: str) -> None:
    adapter = find(name)
    without = adapter.operator.not_applicable(adapter, "smoke")
    for one in shipped(adapter.op):
        said = untestable(one, [adapter], "smoke")
        cannot = one in without and not adapter.missing()
        assert said == (f"{one} is not tested of {name} ({without[one]})" if cannot else None)


def test_one_implementation_that_has_the_suite_is_enough() -> None:
    assert untestable("conventions", [find("eager-merge"), find("eager")], "smoke") is None


@pytest.mark.whole_run
def test_verify_is_a_usage_error_of_one_line(tmp_path: Path) -> None:
    words = ("verify", "--impl", "eager-merge", "--only", "conventions", "--json", "out.json")
    command = [sys.executable, "-m", "kdaverify", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no suite 'conventions' of merge_state" in done.stderr
    assert not (tmp_path / "out.json").exists()
