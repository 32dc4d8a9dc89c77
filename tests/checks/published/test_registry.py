"""Every rule: named once, documented, deaf where it does not apply,
and never wrong about an exact output.
"""

from __future__ import annotations

import pytest

from kdaverify.checks.published.registry import RULES, findings
from tests.checks.published.samples import judged_by, sample, says
from tests.rows import ROOT

COMPARING = [name for name, rule in RULES.items() if rule.benchmark]
EXACT = [0.5, -2.0, 1e-9, 0.0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stored", ["fp32", "bf16", "fp16"])
def test_the_exact_output_passes(rule: str, stored: str) -> None:
    assert says(rule, EXACT, EXACT, EXACT, stored=stored) == "pass"


@pytest.mark.parametrize("rule", RULES)
def test_zeros_for_a_large_output_fail(rule: str) -> None:
    assert says(rule, [0.0] * 4, [3.0, -4.0, 5.0, 6.0], [3.0, -4.0, 5.0, 6.01]) == "fail"


@pytest.mark.parametrize("rule", COMPARING)
def test_a_rule_that_compares_errors_says_nothing_without_a_benchmark(rule: str) -> None:
    found = judged_by(rule, EXACT, EXACT)
    assert (found.says, found.statistic, found.value) == ("n/a", "no benchmark", None)


def test_an_output_without_elements_is_passed_or_not_judged() -> None:
    found = findings(sample([], [], []))
    assert {name for name, finding in found.items() if finding.says == "pass"} == {
        "ascend-atk",
        "torch-testing",
        "kernelbench",
        "kernelbench-hard",
        "backendbench",
        "flashinfer-bench",
        "tt-metal-pcc",
    }
    assert all(finding.says != "fail" for finding in found.values())


def test_gradients_are_not_tested_of_rules_for_the_forward_pass() -> None:
    found = findings(sample(EXACT, EXACT, EXACT, output="dq"))
    assert {name for name, finding in found.items() if finding.says == "n/a"} == {
        "kernelbench",
        "kernelbench-hard",
        "flashinfer-bench",
    }


def test_float64_has_no_limit_where_none_is_published() -> None:
    found = findings(sample(EXACT, EXACT, EXACT, dtype="fp64", stored="fp64"))
    silent = {name for name, finding in found.items() if finding.statistic == "no limit for fp64"}
    assert silent == {name for name in RULES if name.startswith(("ascend", "kernelbench"))}


def test_the_reference_lists_every_rule_with_its_source() -> None:
    listed = [
        line
        for line in (ROOT / "docs/reference.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    for rule in RULES.values():
        criterion = rule.criterion.replace("|", "\\|")
        assert f"| `{rule.name}` | {criterion} | {rule.source} |" in listed, rule.name
