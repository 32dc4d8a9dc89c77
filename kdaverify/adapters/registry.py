"""Finding an implementation: by shipped name, by file, by module, by entry point."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
import sys
import traceback
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.module_adapters import adapter_of
from kdaverify.adapters.shipped import SHIPPED
from kdaverify.foreign_warnings import foreign_warnings

GROUP: Final = "kdaverify.adapters"
_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<object>[\w.]+))?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*)(?::(?P<object>[\w.]+))?")
_FAULT: Final = "fault:"
_OPTIONS = re.compile(r"(?P<name>[\w-]+):(?P<options>\w+=.*)")


class CannotImportError(AdapterError):
    """An implementation is there, but imports what this machine lacks, or another version."""


@dataclass(frozen=True)
class Listing:
    """One implementation that can be named.

    Args:
        name: what find takes.
        origin: "shipped", or the entry point's module:object.
        dtypes: formats it takes; empty if it could not be loaded.
        missing: why it cannot run on this machine, or None.
    """

    name: str
    origin: str
    dtypes: tuple[str, ...]
    missing: str | None


def find(spec: str) -> Adapter:
    """The implementation that `spec` names.

    Args:
        spec: NAME (shipped, or an entry point of the group kdaverify.adapters), path.py[:object] or
            package.module[:object]. Without an object the file or module must hold exactly one
            adapter. A NAME may be followed by :option=value,option=value. fault:ID[@STRENGTH] is
            the embedded kernel with a fault of the catalogue in it.
    Raises:
        AdapterError: nothing by that name, an error at import, no adapter, or no such option.
        CannotImportError: what it raised at import is an ImportError.
    """
    with foreign_warnings():
        return _find(spec)


def _find(spec: str) -> Adapter:
    if spec.startswith(_FAULT):
        return _fault(spec.removeprefix(_FAULT))
    if match := _OPTIONS.fullmatch(spec):
        return find(match["name"]).configured(_options(match["options"], spec))
    if spec in SHIPPED:
        return _from_module(SHIPPED[spec])
    points = _entry_points()
    if spec in points:
        return _loaded(points[spec])
    if match := _FILE.fullmatch(spec):
        return adapter_of(_import_file(Path(match["path"])), match["object"], match["path"])
    if "." in spec or ":" in spec:
        return _from_module(spec)
    raise AdapterError(_unknown(spec, [*SHIPPED, *points]))


def without_options(spec: str) -> str:
    """The name that options may follow."""
    match = _OPTIONS.fullmatch(spec)
    return match["name"] if match else spec


def source_of(spec: str) -> Path | str | None:
    """The file or the module that an implementation begins in; None for a bare name.

    Args:
        spec: what `find` has found one by.
    """
    if match := _OPTIONS.fullmatch(spec):
        # Those that take the place of their kernel: elsewhere:kernel=FILE:FUNCTION,
        # fla_port:module=MODULE.
        options = _options(match["options"], spec)
        named = options.get("kernel") or options.get("module")
        return source_of(match["name"]) if named is None else _place(named)
    if spec.startswith(_FAULT):
        return None
    if spec in SHIPPED:
        return SHIPPED[spec].partition(":")[0]
    points = _entry_points()
    return _place(points[spec].value.replace(" ", "") if spec in points else spec)


def _place(spec: str) -> Path | str | None:
    if match := _FILE.fullmatch(spec):
        return Path(match["path"])
    match = _MODULE.fullmatch(spec)
    return match and match["module"]


def _fault(spec: str) -> Adapter:
    # The catalogue knows adapters; only a fault by name loads it.
    from kdaverify.faults.catalogue import faulty

    return faulty(spec)


def _options(text: str, spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals) or name in options:
            raise AdapterError(
                f"{spec!r}: wanted each option once, as option=value with commas between, got"
                f" {part!r}"
            )
        options[name] = value
    return options


def shipped() -> tuple[Listing, ...]:
    """Every known implementation by name, with the reason if it cannot run; imports none."""
    with foreign_warnings():
        return _shipped()


def _shipped() -> tuple[Listing, ...]:
    listings = [_listing(name, "shipped", _from_module(place)) for name, place in SHIPPED.items()]
    for name, point in sorted(_entry_points().items()):
        try:
            listings.append(_listing(name, point.value, _loaded(point)))
        except AdapterError as error:
            listings.append(Listing(name, point.value, (), str(error)))
    return tuple(listings)


def _listing(name: str, origin: str, adapter: Adapter) -> Listing:
    return Listing(name, origin, adapter.dtypes, adapter.missing())


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _loaded(point: metadata.EntryPoint) -> Adapter:
    return _from_module(point.value.replace(" ", ""))


def _unknown(spec: str, names: list[str]) -> str:
    if Path(f"{spec}.py").is_file():
        return f"no implementation named {spec!r}; the file is {spec}.py"
    close = difflib.get_close_matches(spec, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"no implementation named {spec!r}; {hint}wanted one of the {len(names)} names of"
        " `kdaverify list impls`, path.py[:object] or package.module[:object]"
    )


def _from_module(spec: str) -> Adapter:
    match = _MODULE.fullmatch(spec)
    if match is None:
        raise AdapterError(f"{spec!r}: wanted NAME, path.py[:object] or package.module[:object]")
    name = match["module"]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _refusal(name, None, error) from error
        raise AdapterError(
            f"{spec!r}: no module named {error.name}; install it, or say path.py[:object] for a"
            " file"
        ) from None
    except Exception as error:
        raise _refusal(name, None, error) from error
    return adapter_of(module, match["object"], name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AdapterError(
            f"{path}: no such file (looked in {Path.cwd()}); give the path from here, or the name"
            " of an implementation"
        )
    full = path.resolve()
    # By place and content: two files of one name are two modules, and an edited file is a new one.
    digest = hashlib.sha256(str(full).encode() + full.read_bytes()).hexdigest()[:12]
    name = f"kdaverify_adapter_{re.sub(r'[^0-9A-Za-z_]', '_', full.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    # As for a script: a port may import its neighbours, now or at its first call.
    if str(full.parent) not in sys.path:
        sys.path.append(str(full.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _refusal(str(path), full, error) from error
    return module


def _refusal(name: str, path: Path | None, error: BaseException) -> AdapterError:
    return (CannotImportError if isinstance(error, ImportError) else AdapterError)(
        _raised(name, path, error)
    )


def _raised(name: str, path: Path | None, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"{name}: not valid Python: {said}"
    frame = (own or frames)[-1]
    return (
        f"{name}: raised at import, {Path(frame.filename).name} line {frame.lineno}: {frame.line}:"
        f" {said}"
    )
