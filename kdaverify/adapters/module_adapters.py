"""The adapters that a module holds, and what a file that holds none is advised to do."""

from __future__ import annotations

import difflib
import inspect
import sys
from types import ModuleType
from typing import Any, Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.shipped import SHIPPED

OURS: Final = "kdaverify."
FIELDS: Final = {"name", "dtypes", "device", "deterministic"}
"""Some of what every adapter that the decorator makes holds."""


def adapter_of(module: ModuleType, wanted: str | None, spec: str) -> Adapter:
    found = _adapters(module)
    if wanted is not None:
        return _as_adapter(_attribute(module, wanted, spec, list(found)), f"{spec}:{wanted}")
    if not found:
        raise AdapterError(
            f"{spec}: holds no adapter; decorate your kernel with @kdaverify.kernel(...) or write"
            f" an Adapter class{_callables(module)}"
        )
    if len(found) > 1:
        raise AdapterError(
            f"{spec}: holds several adapters: {', '.join(found)}; name one, such as"
            f" {spec}:{next(iter(found))}"
        )
    name, value = next(iter(found.items()))
    return _as_adapter(value, f"{spec}:{name}")


def _adapters(module: ModuleType) -> dict[str, Any]:
    """Names of a module's adapters: instances, and concrete classes without instances.

    Shipped ones that it imports are none of its own: a port that calls one would otherwise be left
    alone and the other be judged.
    """
    own = module.__name__ if module.__name__.startswith(OURS) else ""
    public = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (own or not _is_shipped(value))
    }
    instances = {
        id(value): name for name, value in reversed(public.items()) if isinstance(value, Adapter)
    }
    made = {type(value) for value in public.values() if isinstance(value, Adapter)}
    return {
        name: value
        for name, value in public.items()
        if instances.get(id(value)) == name or _is_own_class(value, module, made)
    }


def _callables(module: ModuleType) -> str:
    """What a file defines that the decorator can be put on, and how."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    around = [name for name, value in named.items() if _is_around_adapter(value)]
    if around:
        return (
            f"; {around[-1]} is a function around an adapter: apply kdaverify.kernel last, above"
            " torch.compile and other decorators"
        )
    own = {name: value for name, value in named.items() if _is_defined_there(value, module)}
    made = {type(value) for value in own.values()}
    own |= {
        f"{name}()": value
        for name, value in named.items()
        if _is_kernel_class(value, module) and value not in made
    }
    if not own:
        return ""
    last = [*own][-1]
    target = last.removesuffix("()").lower() if last.endswith("()") else last
    which = "write" if len(own) == 1 else "for the one to judge write, for example,"
    return f"; it defines {', '.join(own)}: {which} {target} = kdaverify.kernel(...)({last})"


def _is_around_adapter(value: Any) -> bool:
    # torch.compile hides the adapter, but copies its fields.
    compiled = getattr(value, "_is_torch_compile", False) and vars(value).keys() >= FIELDS
    return compiled or isinstance(getattr(value, "__wrapped__", None), Adapter)


def _is_kernel_class(value: Any, module: ModuleType) -> bool:
    """Whether a class that the file defines has instances that can be called."""
    return (
        isinstance(value, type)
        and value.__module__ == module.__name__
        and any("__call__" in vars(base) for base in value.__mro__)
        and not issubclass(value, Adapter)
    )


def _is_defined_there(value: Any, module: ModuleType) -> bool:
    place = getattr(value, "__module__", None) or type(value).__module__
    return callable(value) and not isinstance(value, type) and place == module.__name__


def _is_shipped(value: Any) -> bool:
    """Whether an object is an implementation that is known by name."""
    places = (place.partition(":") for place in SHIPPED.values())
    return any(value is getattr(sys.modules.get(module), name, None) for module, _, name in places)


def _is_own_class(value: Any, module: ModuleType, made: set[type]) -> bool:
    return _is_adapter_class(value) and value.__module__ == module.__name__ and value not in made


def _is_adapter_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Adapter) and not inspect.isabstract(value)


def _attribute(module: ModuleType, wanted: str, spec: str, known: list[str]) -> Any:
    value: Any = module
    for step in wanted.split("."):
        if not hasattr(value, step):
            close = difflib.get_close_matches(wanted, known, n=1)
            if close:
                hint = f"did you mean {close[0]}?"
            else:
                hint = f"its adapters: {', '.join(known) or 'none'}"
            raise AdapterError(f"{spec}: has no object {wanted!r}; {hint}")
        value = getattr(value, step)
    return value


def _as_adapter(value: Any, spec: str) -> Adapter:
    if isinstance(value, Adapter):
        return value
    if _is_adapter_class(value):
        try:
            return value()
        except Exception as error:
            raise AdapterError(
                f"{spec}: making the adapter failed: {type(error).__name__}: {error}; give __init__"
                " no arguments"
            ) from error
    advice = "decorate it with @kdaverify.kernel(...)" if callable(value) else "name an Adapter"
    raise AdapterError(f"{spec}: wanted an adapter, got {type(value).__name__}; {advice}")
