"""Kernels without a backward are not tested on gradients,
and no problem is built to find that out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.property_table import named
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.autograd import FORWARD_ONLY, ForwardOnlyError
from oracles.inputs import Inputs

PROBLEM = Problem(
    B=1,
    T=5,
    H=1,
    HV=1,
    K=4,
    V=4,
    dtype="fp32",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=0,
)
PACK = PROBLEM.replace(lengths=(3, 2))


class ForwardOnly(Eager):
    """The embedded kernel without its backward."""

    differentiable = False

    def __init__(self) -> None:
        super().__init__("forward-only", {"fp32": "eager-fp32"})


class OverToNumPy(Eager):
    """The embedded kernel behind a conversion that no tensor with a graph survives: its backward is
    declared by nobody, and missing.
    """

    def __init__(self) -> None:
        super().__init__("over-to-numpy", {"fp32": "eager-fp32"})

    def forward(self, inputs: Inputs) -> Output:
        for tensor in inputs.tensors().values():
            tensor.numpy()
        return super().forward(inputs)


def details() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from (
        (name, {"of": "both", "exponent": 0}) for name in named(lambda found: found.of_gradients)
    )
    yield from (("laws", {"law": name}) for name, law in LAWS.items() if law.backward)
    yield from (("calls", {"rule": name}) for name, rule in RULES.items() if rule.backward)


def message(found: list[Outcome]) -> str:
    (outcome,) = found
    assert outcome.status is Status.SKIP
    return outcome.message


@pytest.mark.parametrize(("name", "detail"), [*details()], ids=str)
def test_nothing_is_built_for_gradients_that_there_are_none_of(
    name: str, detail: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Problem, "inputs", pytest.fail)
    assert (
        message(check(name, ForwardOnly(), PROBLEM, detail))
        == f"{FORWARD_ONLY}forward-only has no backward"
    )


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.backward])
def test_a_rule_that_is_tested_runs_no_backward(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ForwardOnlyError("a backward ran")

    monkeypatch.setattr(CallRuleCase, "back", refused)
    problem = PACK if RULES[rule].packed else PROBLEM
    assert not any(
        "a backward ran" in outcome.message
        for outcome in check("calls", ForwardOnly(), problem, {"rule": rule})
    )


@pytest.mark.parametrize("rule", [*RULES])
def test_leaving_torch_is_no_failure_where_a_call_is_recorded(rule: str) -> None:
    """A port in NumPy failed 16 rules with torch's own error, and was rejected."""
    problem = PACK if RULES[rule].packed else PROBLEM
    found = check("calls", OverToNumPy(), problem, {"rule": rule})
    assert not [one for one in found if one.status is Status.ERROR]


def test_the_marked_rules_are_those_about_gradients() -> None:
    with_a_graph = {
        "recorded-forward",
        "frozen-inputs",
        "frozen-subsets",
        "frozen-subsets-chunks",
        "backward-twice",
        "two-forwards",
        "one-tensor",
        "one-expanded",
        "copies-backward-twice",
        "chained-calls",
        "evaluated-before",
        "shared-forwards",
        "two-packs",
        "evaluated-first",
        "micro-batches",
    }
    assert {name for name, rule in RULES.items() if rule.backward} == with_a_graph | {
        name for name in RULES if name.endswith("-backward") or name.startswith("cotangent-")
    }
