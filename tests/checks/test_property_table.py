"""One table of properties: every suite has an entry, every entry a suite and a check, and no other
module keeps a list of them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdaverify
from kdaverify.checks.property_table import PROPERTIES, Property, named
from kdaverify.plugin.collect import property_of

PACKAGE = Path(kdaverify.__file__).parent
KEYED = {"checks/property_table.py", "diagnosis/call.py", "operators/kda/not_applicable.py"}
"""Beside the table: how the diagnosis tests a property, and why an implementation lacks one,
each a function by name."""

ELSEWHERE = {"forward", "gradients", "packing", "resume", "state"}
"""Names of directions, conventions and calls too."""


def lists(source: str) -> Iterator[set[str]]:
    """The property names in each literal of the source that holds two or more
    that are no words of anything else.
    """
    for node in ast.walk(ast.parse(source)):
        elements = (
            node.elts
            if isinstance(node, ast.Tuple | ast.List | ast.Set)
            else node.keys
            if isinstance(node, ast.Dict)
            else []
        )
        held = {
            element.value
            for element in elements
            if isinstance(element, ast.Constant) and isinstance(element.value, str)
        }
        if len(found := held & {*PROPERTIES} - ELSEWHERE) > 1:
            yield found


def test_every_suite_has_an_entry_and_every_entry_a_suite() -> None:
    assert {property_of(path) for path in kdaverify.suites_folder().rglob("test_*.py")} == {
        *PROPERTIES
    }


@pytest.mark.parametrize("found", PROPERTIES.values(), ids=lambda found: found.name)
def test_every_check_takes_an_implementation_first(found: Property) -> None:
    first, *rest = inspect.signature(found.check).parameters
    assert first == "adapter" and (rest[:1] == ["problem"] or found.name == "conventions")


def test_what_is_of_gradients_is_named_as_before() -> None:
    assert named(lambda found: found.of_gradients) == (
        "gradients",
        "gradcheck",
        "self_consistency",
        "jacobian",
        "cotangent_linearity",
    )
    assert {*named(lambda found: found.backward)} - {*named(lambda found: found.of_gradients)} == {
        "backward_stages"
    }


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_other_module_lists_properties(path: Path) -> None:
    found = [*lists(path.read_text())]
    assert not found or str(path.relative_to(PACKAGE)) in KEYED


def test_a_list_of_properties_is_seen() -> None:
    assert [*lists('THESE = ("drift", "probes")')] == [{"drift", "probes"}]
    assert not [*lists('ONE = ("drift", "o")')]
