"""The house: arrows between packages, no import cycle, and machinery that knows no operator's
tensors, stages or axes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from oracles.backward_stages import BACKWARD_SIGNATURES
from oracles.stages import SIGNATURES
from oracles.tensors import COTANGENTS, GRADIENTS, OUTPUTS, TENSORS

ROOT = Path(__file__).parents[1]
GENERIC: Final = (
    "operator.py",
    "problem_operator.py",
    "ruled_operator.py",
    "internals.py",
    "canonical.py",
    "verdicts",
    "report",
    "plugin",
    "cli",
    "campaign",
    "nightly",
    "diagnosis",
    "kills",
    "adapters/isolation",
    "budgets/sampled.py",
    "operators/pipeline.py",
    *(
        f"checks/{name}.py"
        for name in (
            "compare",
            "execute",
            "forward",
            "gradients",
            "outcome",
            "place",
            "property_table",
            "recheck",
        )
    ),
)
"""What judges, records, reports and diagnoses whatever the operator is."""
KDA_MODULES: Final = (
    "kdaverify.problems",
    "kdaverify.budgets.contract",
    "kdaverify.operators.kda",
    "oracles.inputs",
    "oracles.gradients",
    "oracles.tensors",
)
ANYBODYS: Final = (
    "kdaverify.problems.axes",
    "kdaverify.problems.portable",
    "kdaverify.problems.profiles",
)
# Names of one letter are anybody's.
NAMES: Final = {
    name
    for names in (
        TENSORS,
        OUTPUTS,
        GRADIENTS,
        COTANGENTS,
        SIGNATURES,
        BACKWARD_SIGNATURES,
        ("HV", "Aqk", "Akk", "v_new"),
    )
    for name in names
    if len(name) > 1 and name not in ("output", "state")
}
SUITES, PRODUCT, ORACLES = "suites", "kdaverify", "oracles"
MAY_IMPORT: Final = {SUITES: {PRODUCT, ORACLES}, PRODUCT: {ORACLES}, ORACLES: set[str]()}


def modules(*folders: str) -> dict[str, Path]:
    """By dotted name; what runs under other people's Python is not ours."""
    found = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "standalone" not in path.parts
    ]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in found
    }


def imports(tree: ast.Module, *, of_loading: bool) -> Iterator[str]:
    for node in tree.body if of_loading else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(tree: ast.Module) -> Iterator[str]:
    """Everything that code calls something by; prose is none of it."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case (
                ast.Attribute(attr=name)
                | ast.Name(id=name)
                | ast.arg(arg=name)
                | ast.keyword(arg=str(name))
            ):
                yield name
            case _:
                pass


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows_point_one_way(package: str) -> None:
    ours = {*MAY_IMPORT, "tests", "benchmarks"}
    for name, path in modules(package).items():
        wrong = {
            found.partition(".")[0]
            for found in imports(ast.parse(path.read_text()), of_loading=False)
        } & (ours - {package})
        assert wrong <= MAY_IMPORT[package], (
            f"{name} imports {', '.join(wrong - MAY_IMPORT[package])}"
        )


def test_no_module_needs_itself_to_be_loaded() -> None:
    known = modules(PRODUCT, ORACLES)
    graph = TopologicalSorter[str]()
    for name, path in known.items():
        loaded = {
            found if found in known else found.rpartition(".")[0]
            for found in imports(ast.parse(path.read_text()), of_loading=True)
        }
        graph.add(name, *(loaded & known.keys()) - {name})
    graph.prepare()  # raises CycleError, which names the cycle


def test_the_machinery_names_no_tensor_stage_or_axis_of_an_operator() -> None:
    folder = ROOT / PRODUCT
    files = [
        path
        for part in GENERIC
        for path in ([folder / part] if part.endswith(".py") else (folder / part).rglob("*.py"))
    ]
    specific = dict[str, set[str]]()
    for path in files:
        tree = ast.parse(path.read_text())
        words = {*named(tree)} & NAMES
        loaded = (
            found for found in imports(tree, of_loading=False) if not found.startswith(ANYBODYS)
        )
        words |= {found for found in loaded if found.startswith(KDA_MODULES)}
        if words:
            specific[str(path.relative_to(folder))] = words
    assert not specific
