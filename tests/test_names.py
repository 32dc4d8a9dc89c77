"""One name for one thing: no class name is used twice in the package."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.rows import ROOT


def test_no_class_name_is_used_twice() -> None:
    found = defaultdict[str, list[str]](list)
    for path in (
        path for folder in ("oracles", "kdaverify") for path in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
