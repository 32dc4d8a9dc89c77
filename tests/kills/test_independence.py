"""What kills faults does not depend on them: the suites test without the catalogue, in
source and when they run.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kdaverify
from kdaverify.faults.catalogue import FAULTS, NOT_RECREATED
from tests.rows import ROOT

pytestmark = pytest.mark.whole_run

KNOWN = {*FAULTS, *(gap.id for gap in NOT_RECREATED)}
# P1 to P7 are also names in the study of intermediate buffers, which no suite reads.
OTHERS = {"kdaverify/checks/mailboxes/proposals.py"}
FOLDERS = (
    "oracles",
    "suites",
    *(f"kdaverify/{name}" for name in ("problems", "budgets", "checks", "verdicts", "plugin")),
)
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.relative_to(ROOT).as_posix() not in OTHERS
]
SESSION = """
import sys, pytest
ended = pytest.main([sys.argv[1], "-q", "--impl=eager", "-pno:cacheprovider", "-k", "conventions"])
assert ended == 0, ended
import kdaverify.checks.properties
print(sorted(name for name in sys.modules if name.startswith("kdaverify.faults")))
"""


def keys(source: str) -> Iterator[str]:
    """Imports of the catalogue, and strings that are an id or name a fault as an implementation;
    prose may mention one.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) and "kdaverify.faults" in ast.unparse(
            node
        ):
            yield ast.unparse(node)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (node.value in KNOWN or node.value.startswith("fault:"))
        ):
            yield node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_source_of_a_question_is_keyed_to_a_fault(path: Path) -> None:
    assert list(keys(path.read_text())) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from kdaverify.faults.catalogue import FAULTS",
        "x = 3 if name == 'H1' else 4",
        "find('fault:H1')",
    ],
)
def test_a_key_would_be_found(planted: str) -> None:
    assert list(keys(planted))


def test_a_session_loads_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(kdaverify.suites_folder())],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout.strip().endswith("[]"), done.stdout[-800:] + done.stderr[-800:]
