"""Operators that a plain function implements: its signature says how it is called."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

from hypothesis.strategies import SearchStrategy
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.entry_point import Function
from kdaverify.adapters.fitting import Changes, nearest
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from kdaverify.checks.execute import CallError, execute, mended
from kdaverify.checks.outcome import Outcome, declined, rejected
from kdaverify.checks.status import Status
from kdaverify.checks.step_call import uncalled_step
from kdaverify.operator import NO_BACKWARD, CallOperator, Choices
from kdaverify.operators.sizes import below
from oracles.signature import Role


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
        if self.widths:
            return min(self.widths, key=lambda width: (abs(width - wanted), width))
        return wanted

    def has(self, name: str) -> bool:
        """Whether a parameter is taken, or an option declared, or is declared to be that."""
        declared = self.words.get(name) is not None or name in self.words.values()
        return name in self.names or declared

    def fixed(self, name: str, wanted: Any) -> Any:
        """What a keyword is: what is wanted, or what is declared where it is not taken."""
        return wanted if name in self.names else self.words[name]


class FunctionOperator(CallOperator):
    """An operator that functions implement; one without exact values is judged by its laws alone.

    Args:
        positional: parameters passed by position, those that are optional last.
        keywords: passed by name where the signature names them.
        words: options of the declaration: the values of each, the default first; () where any
            number is one, after its default in `numbers`.
        functions: options of the declaration that are functions, None by default.
        formats: that can be judged; float64 is the oracle's own.
        width: the field of a problem that `widths` is about.
        has_backward: False where no function of it is differentiated.
        sizes: fields of a problem that are made smaller, and the sizes tried.
        usual: what a problem is changed to where `supports` refuses it.
    """

    positional: ClassVar[tuple[str, ...]]
    keywords: ClassVar[tuple[str, ...]]
    words: ClassVar[Mapping[str, tuple[str, ...]]]
    numbers: ClassVar[Mapping[str, float]] = {}
    functions: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[str, ...]] = ("fp32", "bf16", "fp16")
    width: ClassVar[str]
    has_backward: ClassVar[bool] = True
    sizes: ClassVar[Mapping[str, tuple[int, ...]]]
    usual: ClassVar[Changes] = ()

    def parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.positional, self.keywords

    def form(self, *, step: bool = False) -> str:
        """The signature of a function, or of a decode entry point, which never gets a pack."""
        packs = self.signature.names(Role.OFFSETS) if step else ()
        keywords = (name for name in self.keywords if name not in packs)
        return f"({', '.join(self.positional)}, *, {', '.join(keywords)})"

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

    def freedoms(self, io: Format) -> Mapping[str, tuple[str, Format]]:
        """What a contract may have more, by its word: a tensor and its format then."""
        return {}

    def named_contract(self, name: str, io: Format) -> StorageContract:
        """The contract that a name declares for a format: one of `contracts`, and freedoms.

        Raises:
            ContractError: there is none of that name; the message has what was wanted.
        """
        known, free = self.contracts(io), self.freedoms(io)
        base, *words = name.split("+")
        if base not in known or not free.keys() >= {*words}:
            behind = f" with any of +{', +'.join(free)} behind it," if free else ""
            raise ContractError(
                f"wanted one of {', '.join(known)},{behind} or a StorageContract, got {name!r}"
            )
        more = dict(free[word] for word in words)
        own = known[base]
        return replace(own, name=f"{name}-{io.name}", tensors={**own.tensors, **more})

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

    def undifferentiated(self, takes: FunctionTakes, *, declared: bool | None) -> str:
        """Why gradients of a function are not tested; "" where they are.

        Args:
            declared: the option `gradients`, None where it is not given.
        """
        if not self.has_backward:
            return f"gradients of {self.name} are not judged"
        return NO_BACKWARD if declared is False else ""

    @abc.abstractmethod
    def arguments(self, call: Any, takes: FunctionTakes) -> dict[str, Any]:
        """What the function gets, by parameter."""

    def received(self, call: Any, takes: FunctionTakes) -> Any:
        """The call that a function effectively gets: what is rounded on the way is rounded here."""
        del takes
        return call

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
        return ()

    def wrong(self, takes: FunctionTakes) -> str | None:
        """What is wrong with a declaration as a whole; None if nothing is."""
        del takes

    def canonical(self, name: str, value: Tensor, call: Any, takes: FunctionTakes) -> Tensor:
        """An output of the function in the operator's axes; part of the graph."""
        return value

    def refuses(self, problem: Any, takes: FunctionTakes) -> str | None:
        """Why a function cannot take a problem: the first field that the nearest has otherwise."""
        inside = self.fit(problem, takes)
        for name in type(problem).model_fields:
            if getattr(inside, name) != (wanted := getattr(problem, name)):
                return f"it does not take {name}={wanted!r}"
        return None

    @abc.abstractmethod
    def fit(self, problem: Any, takes: FunctionTakes) -> Any:
        """The nearest problem that a function takes."""

    @abc.abstractmethod
    def named_problems(self, dtype: str, profile: str) -> Mapping[str, Any]:
        """The panel: problems by the name of what each exposes."""

    @abc.abstractmethod
    def random_problems(self, dtype: str) -> SearchStrategy[Any]:
        """Random problems in a format, whatever an implementation takes."""

    def random(self, adapter: Adapter, dtype: str, bounds: Any) -> SearchStrategy[Any]:
        """Inside what an implementation takes.

        Args:
            bounds: fields that problems are to have, or None.
        """
        return self.random_problems(dtype).map(
            lambda problem: self.within(adapter, problem.replace(**(bounds or {})))
        )

    def panel(self, adapter: Adapter, profile: str) -> Choices:
        return [one for found in self.panels(adapter, profile) for one in found]

    def panels(self, adapter: Adapter, profile: str) -> list[Choices]:
        """The panel of each format, inside what is taken; equal problems are tested once."""
        found = [dict[str, tuple[str, Any]]() for _ in adapter.dtypes]
        for dtype, of_format in zip(adapter.dtypes, found, strict=True):
            for name, problem in self.named_problems(dtype, profile).items():
                inside = self.within(adapter, problem)
                if adapter.supports(inside) is None:
                    of_format.setdefault(inside.to_json(), (f"{dtype}-{name}", inside))
        return [[*each.values()] for each in found]

    def smaller(
        self, problem: Any, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        for axis, sizes in self.sizes.items():
            yield from (({axis: size}, detail) for size in below(getattr(problem, axis), sizes))

    def loss(self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int) -> Any:
        return self._no_oracle

    def reference(
        self, call: Any, contract: Any, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        raise NotImplementedError(self._no_oracle)

    def gradient_reference(
        self, call: Any, cotangents: Any, contract: Any, io: Format
    ) -> Reference:
        raise NotImplementedError(self._no_oracle)

    @property
    def _no_oracle(self) -> str:
        return f"{self.name} has no oracle: it is judged by laws"

    def output_format(self, output: str, contract: Any, io: Format) -> Format:
        return io

    @abc.abstractmethod
    def probe(self, dtype: str) -> Any:
        """A small ordinary problem."""

    def probes(self, dtype: str) -> tuple[Any, ...]:
        """Problems that show together every wrong option; the one probe by default."""
        return (self.probe(dtype),)

    def refusal(self, adapter: Adapter, problem: Any) -> str | None:
        return adapter.supports(problem)

    def fitted(self, adapter: Adapter, problem: Any, *, backward: bool) -> Any:
        return self.within(adapter, problem)

    def within(self, adapter: Adapter, problem: Any) -> Any:
        """The nearest problem that is taken; where `supports` refuses all, one that it refuses."""
        inside = problem if adapter.takes is None else self.fit(problem, adapter.takes)
        found = nearest(adapter, inside, self.usual)
        return inside if found is None else found

    def misfit(self, adapter: Adapter) -> str | None:
        found = self.preflight(adapter)
        return next(
            (one.message for one in found if one.status.rejects and not one.status.takes_process),
            None,
        )

    def preflight(self, adapter: Adapter) -> list[Outcome]:
        """Calls a small problem of every format: what is wrong with one call is wrong with all."""
        found = [
            self._probed(adapter, self.within(adapter, problem))
            for dtype in adapter.dtypes
            for problem in self.probes(dtype)
        ]
        if not adapter.step_form or rejected(found):
            return found
        step = uncalled_step(
            adapter, self.within(adapter, self.probe(adapter.dtypes[0]).replace(T=1))
        )
        return found if step is None else [*found, step]

    def _probed(self, adapter: Adapter, problem: Any) -> Outcome:
        if reason := adapter.supports(problem):
            return Outcome("call", Status.SKIP, f"preflight: {problem.describe()}: {reason}")
        adapter.begin(f"preflight {problem.to_json()}")
        try:
            found = execute(adapter, problem.inputs(), adapter.exposes(problem)).outputs
        except CallError as fault:
            said = f"{mended(adapter, fault)}{self.advice(fault, adapter, problem)}"
            return declined([Outcome(fault.output, fault.status, said)])[0]
        said = self.otherwise(adapter, problem, found) if adapter.answers else None
        return Outcome(
            "call",
            Status.CONVENTION if said else Status.PASS,
            said or f"preflight: {problem.describe()} is answered",
        )

    def advice(self, fault: CallError, adapter: Adapter, problem: Any) -> str:
        """What to change in the kernel or declaration, for failures that it recognises."""
        return ""

    def otherwise(self, adapter: Adapter, problem: Any, found: Mapping[str, Tensor]) -> str | None:
        """Which declared option does not fit, and which would; None unless one fits better."""
        del adapter, problem, found
