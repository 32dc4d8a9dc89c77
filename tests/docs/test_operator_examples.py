"""The convolution, the norm and the layer of the how-to guide conform: they pass what smoke tests
them on.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from tests.docs.blocks import ROOT, blocks

OPERATORS: Final = ("short_conv", "gated_rms_norm", "layer")


def examples() -> dict[str, Any]:
    found = dict[str, Any]()
    for block in blocks(ROOT / "docs" / "how_to.md"):
        if any(f'op="{op}"' in block.text for op in OPERATORS):
            names = dict[str, Any]()
            code = compile(block.text, "how_to.md", "exec")
            exec(code, names)  # noqa: S102 # our own documentation
            found |= {x.op: x for x in names.values() if isinstance(x, Adapter)}
    return found


EXAMPLES: Final = examples()


def rejections(adapter: Any, name: str, cases: list[tuple[Any, dict[str, Any]]]) -> list[str]:
    return [
        outcome.message
        for problem, detail in cases
        for outcome in check(name, adapter, problem, detail)
        if outcome.status.rejects
    ]


def test_there_is_one_of_each() -> None:
    assert {*EXAMPLES} == {*OPERATORS}


@pytest.mark.parametrize("op", OPERATORS[:2])
def test_an_example_of_a_function_passes_the_panel_and_the_rules_of_calls(op: str) -> None:
    adapter = EXAMPLES[op]
    problems = [problem for _, problem in adapter.operator.panel(adapter, "smoke")]
    assert not rejections(adapter, "forward", [(p, {}) for p in problems])
    assert not rejections(adapter, "gradients", [(p, {"of": "both"}) for p in problems])
    called = [(one.problem, one.detail) for one in questions(adapter, "smoke")]
    assert not rejections(adapter, "calls", called)


def test_an_example_of_a_layer_keeps_its_laws() -> None:
    adapter = EXAMPLES["layer"]
    cases = [(p, {"law": law}) for _, (law, p) in adapter.operator.lawful(adapter, "smoke")]
    assert {"reset-cache", "reordered-cache", "idle-rows"} <= {law["law"] for _, law in cases}
    assert not rejections(adapter, "laws", cases)
