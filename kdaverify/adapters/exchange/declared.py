"""An adapter of a declared kernel called elsewhere: a declaration, and what runs its calls."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from kdaverify.adapters.base import Adapter, all_behind
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.declared_function import FunctionInWords
from kdaverify.adapters.kernel_adapter import KernelAdapter, adapted
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents, Gradients

Entry = Literal["forward", "step", "vjp"]
Arguments = dict[str, Any]


@dataclass(frozen=True)
class DeclaredCall:
    """One call on its way to the kernel.

    Args:
        entry: which function is meant.
        inputs: the call in canonical conventions.
        arguments: the same as the kernel wants it, by name.
    """

    entry: Entry
    inputs: Any
    arguments: Arguments

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The arguments that are tensors."""
        return {name: x for name, x in self.arguments.items() if isinstance(x, Tensor)}

    @property
    def values(self) -> dict[str, float | str]:
        """The numbers and words beside them; what is absent is not there."""
        return {
            name: x
            for name, x in self.arguments.items()
            if x is not None and not isinstance(x, Tensor)
        }


class _Function:
    """A callable whose signature is what the declaration says."""

    def __init__(
        self, call: Callable[[Arguments], Any], tokens: Sequence[str], keywords: Sequence[str]
    ) -> None:
        by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature(
            [
                *(inspect.Parameter(name, by_place) for name in tokens),
                *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords),
            ]
        )
        self._call = call

    def __call__(self, *tokens: Any, **named: Any) -> Any:
        return self._call(dict(self.__signature__.bind(*tokens, **named).arguments))


def kda_adapter(declaration: Declaration, call: Callable[[Arguments], Any]) -> KernelAdapter:
    """The adapter of a declared KDA kernel; `call` gets all arguments as one mapping.

    Raises:
        AdapterError: an option has no such value, or contradicts another.
    """
    return adapted(declaration, _Function(call, declaration.tokens, declaration.keywords))


def adapter_of(
    declaration: Declaration | FunctionInWords, call: Callable[[Arguments], Any]
) -> Adapter:
    """The same of a kernel of any operator."""
    if isinstance(declaration, Declaration):
        return kda_adapter(declaration, call)
    function = _Function(call, declaration.tokens, declaration.keywords)
    return declaration.operator.wrapped(function, declaration.options)


class Declared(Adapter):
    """All that the declaration decides; subclasses carry the calls.

    Raises:
        AdapterError: the declaration contradicts itself.
    """

    barriers = all_behind("calls go to the kernel as files and come back as files")

    def __init__(self, declaration: Declaration | FunctionInWords) -> None:
        self.declaration = declaration
        self._kernel = adapter_of(
            declaration, lambda arguments: self.carry(DeclaredCall(*self._tested, arguments))
        )
        for name in ("op", "name", "dtypes", "conventions", "domain", "takes"):
            setattr(self, name, getattr(self._kernel, name))
        self.deterministic = declaration.deterministic

    @abc.abstractmethod
    def carry(self, call: DeclaredCall) -> tuple[Any, ...]:
        """The outputs of one call in the kernel's conventions; None where not returned."""

    def contract(self, dtype: str) -> Any:
        return self._kernel.contract(dtype)

    def supports(self, problem: Any) -> str | None:
        return self._kernel.supports(problem)

    def exposes(self, problem: Any) -> tuple[str, ...]:
        return self._kernel.exposes(problem)

    def received(self, inputs: Any) -> Any:
        return self._kernel.received(inputs)

    def forward(self, inputs: Any) -> Any:
        self._tested: tuple[Entry, Any] = ("forward", inputs)
        return self._kernel.forward(inputs)

    def gradients(self, inputs: Any, cotangents: Cotangents) -> Gradients[Any]:
        raise ForwardOnlyError(
            "calls go to the kernel as files and come back as files, which carry outputs and no"
            " gradients"
        )

    def step(self, inputs: Any) -> Any:
        self._tested = ("step", inputs)
        return self._kernel.step(inputs)
