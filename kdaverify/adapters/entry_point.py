"""How a user's function is called: read off its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter, AdapterError
from oracles.gate_activation import PARAMETERS
from oracles.tensors import TOKENS

Function = Callable[..., Any]
OPTIONAL: Final = ("scale", "initial_state", "cu_seqlens", "segment_ids")
ACTIVATED: Final = {"softplus": PARAMETERS, "bounded": (*PARAMETERS, "lower_bound")}
"""What is passed beside them for a gate that the kernel activates."""


@dataclass(frozen=True)
class EntryPoint:
    """A function and how to call it.

    Args:
        function: of the user.
        keywords: of OPTIONAL and ACTIVATED, those that its signature names.
        by_name: whether its signature names the tensors, which are passed by name then.
        scale_defaults_to_none: whether it can be called without a scale, and chooses one then.
        omits_scale: whether it is called without one.
        tokens: the tensors that it takes of each token, in the order in which they are passed.
    """

    function: Function
    keywords: tuple[str, ...]
    by_name: bool
    scale_defaults_to_none: bool = False
    omits_scale: bool = False
    tokens: tuple[str, ...] = TOKENS

    # never written to
    def __call__(self, arguments: Mapping[str, Any], unknown: Mapping[str, Any] = {}) -> Any:
        keywords = {name: arguments[name] for name in self.keywords} | {**unknown}
        if not self.omits_scale:
            return self._called(arguments, keywords)
        try:
            return self._called(
                arguments, {name: value for name, value in keywords.items() if name != "scale"}
            )
        except TypeError:
            # q * None: the default is a place holder, and every caller is meant to pass a number.
            return self._called(arguments, keywords)

    def _called(self, arguments: Mapping[str, Any], keywords: Mapping[str, Any]) -> Any:
        if self.by_name:
            return self.function(**{name: arguments[name] for name in self.tokens}, **keywords)
        return self.function(*(arguments[name] for name in self.tokens), **keywords)

    def without_scale(self) -> EntryPoint:
        """The same function without its keyword scale, to be called where K^-1/2 is meant."""
        return replace(self, scale_defaults_to_none=False, omits_scale=True)

    @property
    def place(self) -> str:
        return place_of(self.function)


def place_of(function: Function) -> str:
    """The name of a function, with its file and line if it is written in Python."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(inspect.unwrap(_signed(function)), "__code__", None)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def entry_point(
    title: str, function: Function, tokens: tuple[str, ...] = TOKENS, *, gate: str = "log"
) -> EntryPoint:
    """How the function of the kernel `title` is called, from its signature.

    Args:
        tokens: the tensors that it takes of each token.
        gate: what it takes in place of a log gate: parameters of an activation are passed, too.
    Raises:
        AdapterError: no readable signature, fewer tensors, or a parameter without an argument.
    """
    _refuse_unfit(title, function)
    parameters = _parameters(title, function)
    named = _of_kinds(parameters, "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    by_name = all(name in named for name in tokens)
    leading = _of_kinds(parameters, "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")
    taken = tokens if by_name else tuple(leading[: len(tokens)])
    if len(taken) < len(tokens):
        missing = ", ".join(name for name in tokens if name not in parameters)
        raise AdapterError(
            f"kernel {title!r}: wanted a function of ({', '.join(tokens)}, ...), got"
            f" ({', '.join(parameters)}), without {missing}; wrap the kernel in a function with"
            " these arguments"
        )
    passed = (*OPTIONAL, *ACTIVATED.get(gate, ()))
    _refuse_hidden(title, parameters, passed)
    keywords = tuple(name for name in passed if name in named and name not in taken)
    _refuse_extra(title, parameters, (*taken, *keywords), (*tokens, *passed))
    scale = parameters.get("scale")
    defaults = scale is not None and scale.default is None
    return EntryPoint(function, keywords, by_name, scale_defaults_to_none=defaults, tokens=tokens)


def _parameters(title: str, function: Function) -> Mapping[str, inspect.Parameter]:
    """Those of a function that has its object.

    Raises:
        AdapterError: no readable signature, or a method.
    """
    try:
        parameters = signature_of(function).parameters
    except (TypeError, ValueError):
        raise AdapterError(
            f"kernel {title!r}: {function!r} has no readable signature; wrap it in a Python"
            " function"
        ) from None
    if next(iter(parameters), "") == "self":
        raise AdapterError(
            f"kernel {title!r}: is a method, which has no object yet; decorate the object instead:"
            " port = kdaverify.kernel(...)(Port())"
        )
    return parameters


def _of_kinds(parameters: Mapping[str, inspect.Parameter], *kinds: str) -> list[str]:
    return [name for name, p in parameters.items() if p.kind.name in kinds]


def signature_of(function: Function) -> inspect.Signature:
    """What a call takes: of a module of torch, wrapped or with arguments filled in or not, what its
    forward takes.

    Its __call__ takes (*args, **kwargs): a module that attention was declared with got no keyword,
    and failed for lack of those that its forward needs.
    """
    return inspect.signature(_signed(function))


def _signed(function: Function) -> Function:
    if isinstance(function, functools.partial):
        return functools.partial(_signed(function.func), *function.args, **function.keywords)
    if isinstance(function, torch.nn.Module):
        own = inspect.signature(function).parameters.values()
        hidden = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own)
        return function.forward if hidden else function
    wrapped = None if hasattr(function, "__signature__") else getattr(function, "__wrapped__", None)
    return function if wrapped is None else _signed(wrapped)


def _refuse_unfit(title: str, function: Function) -> None:
    """Refuses what is no function of tensors, whatever its arguments."""
    if isinstance(function, Adapter):
        raise AdapterError(
            f"kernel {function.name!r}: decorated twice; remove one @kdaverify.kernel"
        )
    if isinstance(function, type) and function.__module__ != "builtins":
        raise AdapterError(
            f"kernel {title!r}: is a class; decorate an instance:"
            f" kdaverify.kernel(...)({function.__name__}())"
        )
    if inspect.iscoroutinefunction(function):
        raise AdapterError(
            f"kernel {title!r}: is an async function; decorate one that waits for it, such as with"
            " asyncio.run(...)"
        )


def _refuse_hidden(
    title: str, parameters: Mapping[str, inspect.Parameter], passed: tuple[str, ...]
) -> None:
    """Refuses options that cannot be passed by name."""
    hidden = [
        name for name, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and name in passed
    ]
    if hidden:
        raise AdapterError(
            f"kernel {title!r}: {', '.join(hidden)}: passed by name, but positional-only in the"
            " signature; move the / before them"
        )
    rest = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    if rest and not any(name in parameters for name in passed):
        raise AdapterError(
            f"kernel {title!r}: **{rest[0]} gets nothing, since options are passed where the"
            f" signature names them; name those that the kernel takes ({', '.join(passed)}), or"
            f" remove **{rest[0]}"
        )


def _refuse_extra(
    title: str,
    parameters: Mapping[str, inspect.Parameter],
    given: tuple[str, ...],
    known: tuple[str, ...],
) -> None:
    """Refuses parameters without a default that no argument is passed for."""
    extra = [
        name
        for name, p in parameters.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and name not in given
    ]
    if not extra:
        return
    if {*extra} <= {*ACTIVATED["bounded"]}:
        raise AdapterError(
            f"kernel {title!r}: {', '.join(extra)}: is of a gate that the kernel activates;"
            " declare gate='softplus' or gate='bounded'"
        )
    raise AdapterError(
        f"kernel {title!r}: nothing to pass for {', '.join(extra)}; give it a default, or wrap"
        f" the kernel in a function with the names that are passed: {', '.join(known)}"
    )
