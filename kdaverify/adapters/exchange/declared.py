"""An adapter of a declared kernel that is called somewhere else:
a declaration, and whatever carries its calls.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.channels import all_behind
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.kernel import KernelAdapter, adapted
from kdaverify.budgets.contract import Contract
from kdaverify.problems import Problem
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

Entry = Literal["forward", "step", "vjp"]


@dataclass(frozen=True)
class DeclaredCall:
    """One call on its way to the kernel.

    Args:
        entry: which function is meant.
        inputs: the call in canonical conventions.
        arguments: the same as the kernel wants it, by name.
    """

    entry: Entry
    inputs: Inputs
    arguments: dict[str, Any]


class _Function:
    """A callable whose signature is what the declaration says."""

    def __init__(self, call: Callable[[dict[str, Any]], Any], declaration: Declaration) -> None:
        tokens = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in declaration.tokens
        ]
        others = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in declaration.keywords
        ]
        self.__signature__ = inspect.Signature([*tokens, *others])
        self._call = call

    def __call__(self, **arguments: Any) -> Any:
        return self._call(arguments)


def adapter_of(declaration: Declaration, call: Callable[[dict[str, Any]], Any]) -> KernelAdapter:
    """The adapter of a declared kernel that is called as `call`, which gets all arguments as one
    mapping.

    Raises:
        AdapterError: an option has no such value, or contradicts another.
    """
    return adapted(declaration, _Function(call, declaration))


class Declared(Adapter):
    """All that the declaration decides; subclasses carry the calls.

    Raises:
        AdapterError: the declaration contradicts itself.
    """

    barriers = all_behind("calls go to the kernel as files and come back as files")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._kernel = adapter_of(
            declaration, lambda arguments: self.carry(DeclaredCall(*self._tested, arguments))
        )
        self.name, self.dtypes, self.conventions = (
            self._kernel.name,
            self._kernel.dtypes,
            self._kernel.conventions,
        )
        self.domain, self.deterministic = self._kernel.domain, declaration.deterministic

    @abc.abstractmethod
    def carry(self, call: DeclaredCall) -> tuple[Any, Any]:
        """(o, final_state) of one call in the kernel's conventions."""

    def contract(self, dtype: str) -> Contract:
        return self._kernel.contract(dtype)

    def supports(self, problem: Problem) -> str | None:
        return self._kernel.supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        return self._kernel.exposes(problem)

    def received(self, inputs: Inputs) -> Inputs:
        return self._kernel.received(inputs)

    def forward(self, inputs: Inputs) -> Output:
        self._tested: tuple[Entry, Inputs] = ("forward", inputs)
        return self._kernel.forward(inputs)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        del inputs, cotangents
        raise ForwardOnlyError(
            "calls go to the kernel as files and come back as files, which carry outputs and no"
            " gradients"
        )

    def step(self, inputs: Inputs) -> Output:
        self._tested = ("step", inputs)
        return self._kernel.step(inputs)
