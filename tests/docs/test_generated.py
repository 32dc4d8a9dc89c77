"""What the reference takes from the code is what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.adapters.kernel import kernel
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import ensemble
from kdaverify.operators.kda.mistakes.simple import SIGNATURES
from tests.docs.blocks import ROOT
from tests.docs.generated import IMPLEMENTATIONS, REFERENCE, pages, reference
from tests.docs.reference_tables import TABLES, arguments

WRITE = "python -m tests.docs.generated --write"


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_generated_parts_are_those_of_the_code(page: Path) -> None:
    assert page.read_text() == pages()[page], f"run {WRITE}"


def test_every_table_is_on_the_page_once() -> None:
    text = REFERENCE.read_text() + IMPLEMENTATIONS.read_text()
    assert {name: text.count(f"<!-- generated: {name} -->") for name in TABLES} == dict.fromkeys(
        TABLES, 1
    )


def test_a_table_that_differs_is_replaced() -> None:
    stale = "before\n<!-- generated: exit-codes -->\n| 0 | reject |\n<!-- end -->\nafter\n"
    fresh = reference(stale)
    assert "| 0 | accept |" in fresh and "| 0 | reject |" not in fresh
    assert fresh.startswith("before\n") and fresh.endswith("<!-- end -->\nafter\n")


def test_every_option_of_the_decorator_is_described() -> None:
    described = {name for names, _ in arguments(kernel.__doc__ or "") for name in names.split(", ")}
    assert described == {name for name in kernel.__annotations__ if name != "return"}


def test_counts_in_the_text_are_those_of_the_code() -> None:
    contract = contract_from_name("chunk64-bf16")
    assert len(ensemble(contract, contract.operands)) == 10
    assert "ten for `chunk64-bf16`" in (ROOT / "docs/glossary.md").read_text()
    assert round(len(SIGNATURES), -1) == 60
    assert "some sixty simple mistakes" in (ROOT / "docs/how_to.md").read_text()
