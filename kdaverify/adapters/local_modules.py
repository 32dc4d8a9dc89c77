"""The local modules that an implementation imports: its own files alone."""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import util
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

import kdaverify

INSTALLED: Final = frozenset(("site-packages", "dist-packages"))
OURS: Final = ("kdaverify", "oracles", "suites")
"""Packages of the harness: a record names their version by itself."""


@dataclass(frozen=True)
class _Module:
    """A file, and the package that its relative imports start from; "" for a file on its own."""

    path: Path
    package: str


def local_modules(source: str | Path) -> tuple[Path, ...]:
    """Every local file that `source` imports, itself included, in order.

    Imports are read off the code, those inside functions included, and nothing is run. Not found
    are modules whose names are computed when the kernel runs, and sources that it compiles.

    Args:
        source: the path of a Python file, or the name of a module that has been imported.
    """
    first = (
        [_Module(source.resolve(), "")] if isinstance(source, Path) else list(_named(source, ()))
    )
    beside = (str(source.resolve().parent),) if isinstance(source, Path) else ()
    waiting, seen = [*first], dict[Path, None]()
    while waiting:
        module = waiting.pop()
        # A shipped adapter is no local file; a package that it imports may be one, where that is
        # being developed.
        if module.path in seen or not (module in first or is_local(module.path)):
            continue
        seen[module.path] = None
        waiting += [found for name in _imports(module) for found in _named(name, beside)]
    return tuple(sorted(path for path in seen if is_local(path)))


def is_local(path: Path) -> bool:
    """Whether a file belongs to whoever develops what is tested."""
    return (
        path.is_file()
        and not INSTALLED & {*path.parts}
        and not any(path.is_relative_to(folder) for folder in _not_local())
    )


@cache
def _not_local() -> tuple[Path, ...]:
    package = Path(kdaverify.__file__).resolve().parent
    library = (Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
    return (*library, *(package.parent / name for name in OURS))


def _imports(module: _Module) -> Iterator[str]:
    """The full names of what a file imports, and of what may be a module in them."""
    if module.path.suffix not in SOURCE_SUFFIXES:
        return
    try:
        tree = ast.parse(module.path.read_bytes())
    except (SyntaxError, ValueError):  # code for another Python
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = _absolute(name or "", level, module.package)
                yield from (f"{base}.{alias.name}" for alias in names if base)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[first, *_],
            ):
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value
            case _:
                pass


def _absolute(name: str, level: int, package: str) -> str:
    if not level:
        return name
    steps = package.split(".")
    return ".".join(filter(None, (*steps[: len(steps) - level + 1], name))) if package else ""


def _named(name: str, beside: Sequence[str]) -> Iterator[_Module]:
    """The modules on the way to a dotted name; it may end in something that is no module.

    Args:
        beside: folders that are searched too.
    """
    places: Sequence[str] | None = None
    steps = name.split(".")
    for depth in range(1, len(steps) + 1):
        dotted = ".".join(steps[:depth])
        spec = _spec(dotted, places, beside)
        if spec is None:
            return
        places = spec.submodule_search_locations
        if spec.origin and spec.has_location:
            module = _Module(
                Path(spec.origin).resolve(),
                dotted if places is not None else dotted.rpartition(".")[0],
            )
            yield module
            if not (name.startswith(OURS) or is_local(module.path)):
                return
        if places is None:
            return


def _spec(dotted: str, places: Sequence[str] | None, beside: Sequence[str]) -> ModuleSpec | None:
    """What a loaded module was loaded by; for others what an import would find."""
    if found := getattr(sys.modules.get(dotted), "__spec__", None):
        return found
    try:
        if places is not None:
            return PathFinder.find_spec(dotted, places)
        return util.find_spec(dotted) or PathFinder.find_spec(dotted, beside)
    except KeyError:
        return _folder(dotted, places or ())
    except (ImportError, ValueError, AttributeError):
        return None


def _folder(dotted: str, places: Sequence[str]) -> ModuleSpec | None:
    """A folder without __init__.py below a package that is not loaded, yet imports search."""
    found = [
        str(path) for place in places if (path := Path(place, dotted.rpartition(".")[2])).is_dir()
    ]
    spec = ModuleSpec(dotted, None, is_package=True)
    spec.submodule_search_locations = found
    return spec if found else None
