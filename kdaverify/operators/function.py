"""Operators that a plain function implements: how it is called is read off its signature, and what
it does not take is not tested.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.entry_point import Function
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.checks.execute import CallError, execute, mended
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from kdaverify.operator import CallOperator


@final
@dataclass(frozen=True)
class FunctionTakes:
    """What a function takes of a call.

    Args:
        names: of its parameters, those that the operator has.
        words: the declared options, by name.
        widths: all that it takes of the operator's width; () any.
        returns: the outputs that it returns.
    """

    names: frozenset[str]
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    widths: tuple[int, ...] = ()
    returns: tuple[str, ...] = ()

    def width(self, wanted: int) -> int:
        """The nearest width that it takes."""
        return (
            min(self.widths, key=lambda width: (abs(width - wanted), width))
            if self.widths
            else wanted
        )

    def fixed(self, name: str, wanted: Any) -> Any:
        """What a keyword is: what is wanted, or what is declared
        where the function does not take it.
        """
        return wanted if name in self.names else self.words[name]


class FunctionOperator(CallOperator):
    """An operator that functions implement.

    Args:
        positional: parameters passed by position, those that are optional last.
        keywords: passed by name where the signature names them.
        words: options of the declaration: the values of each, the default first; () where any
            number is one, after its default in `numbers`.
        functions: options of the declaration that are functions, None by default.
        formats: that can be judged; float64 is the oracle's own.
        width: the field of a problem that `widths` is about.
        has_backward: False where no function of it is differentiated.
    """

    positional: ClassVar[tuple[str, ...]]
    keywords: ClassVar[tuple[str, ...]]
    words: ClassVar[Mapping[str, tuple[str, ...]]]
    numbers: ClassVar[Mapping[str, float]] = {}
    functions: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16")
    width: ClassVar[str]
    has_backward: ClassVar[bool] = True

    def parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.positional, self.keywords

    def wrapped(self, function: Function, options: Mapping[str, Any]) -> Adapter:
        from kdaverify.adapters.frameworks import FRAMEWORKS
        from kdaverify.adapters.operator_kernel import operator_kernel  # it needs this module first

        read = {
            name: float(value) if name in self.numbers else value for name, value in options.items()
        }
        return operator_kernel(self.name, function, read, FRAMEWORKS["torch"])

    @abc.abstractmethod
    def contracts(self, io: Format) -> Mapping[str, StorageContract]:
        """The contracts of a format by name, the default first."""

    def named_contract(self, name: str, io: Format) -> StorageContract:
        """The contract of a format that a name declares.

        Raises:
            ContractError: there is none of that name; the message has what was wanted.
        """
        known = self.contracts(io)
        if name not in known:
            raise ContractError(
                f"wanted one of {', '.join(known)}, or a StorageContract, got {name!r}"
            )
        return known[name]

    @abc.abstractmethod
    def returns(
        self, names: frozenset[str], words: Mapping[str, Any], *, final_state: bool
    ) -> tuple[str, ...]:
        """The outputs of a function of such parameters.

        Args:
            words: the declared options.
            final_state: whether the declaration has one.
        """

    def differentiated(self, takes: FunctionTakes) -> tuple[str, ...]:
        """The outputs whose cotangents a backward follows; all that are returned by default."""
        return takes.returns

    @abc.abstractmethod
    def arguments(self, call: Any, takes: FunctionTakes) -> dict[str, Any]:
        """What the function gets, by parameter."""

    def invoked(
        self, function: Function, call: Any, takes: FunctionTakes, unknown: Mapping[str, Any]
    ) -> Any:
        """What the function returns for a call.

        Args:
            unknown: keywords more than it can know.
        """
        arguments = self.arguments(call, takes)
        positional = [arguments[name] for name in self.positional if name in takes.names]
        keywords = {name: arguments[name] for name in self.keywords if name in takes.names}
        return function(*positional, **keywords, **unknown)

    def beside(self, words: Mapping[str, Any]) -> tuple[str, ...]:
        """Formats that a function is called in and not judged in.

        Args:
            words: the declared options, by name.
        """
        del words
        return ()

    def wrong(self, takes: FunctionTakes) -> str | None:
        """What is wrong with a declaration as a whole; None if nothing is."""
        del takes

    def canonical(self, name: str, value: Tensor, call: Any, takes: FunctionTakes) -> Tensor:
        """An output of the function in the operator's axes; part of the graph."""
        del name, call, takes
        return value

    def refuses(self, problem: Any, takes: FunctionTakes) -> str | None:
        """Why a function cannot take a problem; None if it can: by default the first field that
        the nearest problem which it takes has otherwise.
        """
        inside = self.fit(problem, takes)
        for name in type(problem).model_fields:
            if getattr(inside, name) != (wanted := getattr(problem, name)):
                return f"it does not take {name}={wanted!r}"
        return None

    @abc.abstractmethod
    def fit(self, problem: Any, takes: FunctionTakes) -> Any:
        """The nearest problem that a function takes."""

    @abc.abstractmethod
    def probe(self, dtype: str) -> Any:
        """A small ordinary problem."""

    def probes(self, dtype: str) -> tuple[Any, ...]:
        """Problems that show together every wrong option; the one probe by default."""
        return (self.probe(dtype),)

    def refusal(self, adapter: Adapter, problem: Any) -> str | None:
        return adapter.supports(problem)

    def fitted(self, adapter: Adapter, problem: Any, *, backward: bool) -> Any:
        del backward
        return self.within(adapter, problem)

    def within(self, adapter: Adapter, problem: Any) -> Any:
        return problem if adapter.takes is None else self.fit(problem, adapter.takes)

    def misfit(self, adapter: Adapter) -> str | None:
        found = self.preflight(adapter)
        return next(
            (one.message for one in found if one.status.rejects and not one.status.takes_process),
            None,
        )

    def preflight(self, adapter: Adapter) -> list[Outcome]:
        """Calls one small problem of every format: what is wrong with the call itself, or with a
        declared option, is wrong with all.
        """
        return [
            self._probed(adapter, self.within(adapter, problem))
            for dtype in adapter.dtypes
            for problem in self.probes(dtype)
        ]

    def _probed(self, adapter: Adapter, problem: Any) -> Outcome:
        if reason := adapter.supports(problem):
            return Outcome("call", Status.SKIP, f"preflight: {problem.describe()}: {reason}")
        adapter.begin(f"preflight {problem.to_json()}")
        try:
            found = execute(adapter, problem.inputs(), adapter.exposes(problem)).outputs
        except CallError as fault:
            return Outcome(
                fault.output,
                fault.status,
                f"{mended(adapter, fault)}{self.advice(fault, adapter, problem)}",
            )
        said = self.otherwise(adapter, problem, found) if adapter.answers else None
        return Outcome(
            "call",
            Status.CONVENTION if said else Status.PASS,
            said or f"preflight: {problem.describe()} is answered",
        )

    def advice(self, fault: CallError, adapter: Adapter, problem: Any) -> str:
        """What to change in the kernel or its declaration, where the call of a problem fails for a
        reason that the operator knows.
        """
        del fault, adapter, problem
        return ""

    def otherwise(self, adapter: Adapter, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        """Which declared option does not fit what came, and which one would;
        None where nothing else fits better.
        """
        del adapter, problem, found
