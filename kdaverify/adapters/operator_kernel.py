"""A decorated function as an adapter of any operator that functions implement."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, Adapter, AdapterError, isolated_by_default
from kdaverify.adapters.convention_checks import packing_of
from kdaverify.adapters.entry_point import Function, place_of, signature_of
from kdaverify.adapters.frameworks import FRAMEWORKS, Framework, framework_of
from kdaverify.adapters.placement import gradients_on_device, lacks_device, on_device
from kdaverify.adapters.undeclared import advice
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import StorageContract
from kdaverify.canonical import ProblemError
from kdaverify.operator import call_operator
from kdaverify.operators.function import FunctionOperator, FunctionTakes
from oracles.autograd import ForwardOnlyError, derivatives, leaves_of
from oracles.signature import Role

SHARED: Final = (
    "name", "contract", "dtypes", "widths", "device", "isolate", "deterministic", "gradients",
    "final_state", "step", "supports", "proof", "environment", "missing",
)  # fmt: skip
"""Options of the decorator that mean the same for every operator."""


@dataclass(frozen=True)
class FunctionDeclaration:
    """What a function declares of itself; see `kernel`.

    Args:
        missing: why it cannot run on this machine; None if it can. For shipped adapters.
    """

    dtypes: Sequence[str] = ("fp32",)
    contract: Any = None
    widths: Sequence[int] = ()
    device: str = "cpu"
    isolate: bool | None = None
    deterministic: bool = True
    gradients: bool | None = None
    final_state: bool = True
    step: Function | None = None
    missing: Callable[[], str | None] = lambda: None
    supports: Callable[[Any], str | None] | None = None
    proof: Callable[[], str] | None = None
    environment: Callable[[], Mapping[str, str]] | None = None


def operator_kernel(
    op: str, function: Function, options: Mapping[str, Any], framework: Framework
) -> FunctionAdapter:
    """The adapter of a function of an operator.

    Args:
        op: its name.
        options: those of the decorator that were given.
        framework: whose arrays the function takes.
    Raises:
        AdapterError: there is no such option, or it has no such value, or the signature does not
            fit.
    """
    title = options.get("name") or getattr(function, "__name__", type(function).__name__)
    try:
        operator = call_operator(op)
    except ProblemError as error:
        raise AdapterError(f"kernel {title!r}: {error}") from None
    if not isinstance(operator, FunctionOperator):
        raise AdapterError(
            f"kernel {title!r}: op={op!r} is implemented by an Adapter class, not by a function"
        )
    own = {name: value for name, value in options.items() if name not in SHARED}
    if "packing" in operator.words:
        own = {"packing": packing_of(_parameters(title, function, operator)), **own}
    words = _words(title, operator, own)
    given = {name: value for name, value in options.items() if name in SHARED and name != "name"}
    for option in ("dtypes", "widths"):
        value = given.get(option, ())
        given |= (
            {option: (value,) if isinstance(value, str | int) else tuple(value)}
            if option in given
            else {}
        )
    if given.get("step") is not None:
        given["step"] = framework.adapt(given["step"])
    adapter = FunctionAdapter(
        title, operator, framework.adapt(function), FunctionDeclaration(**given), words
    )
    functools.update_wrapper(adapter, function, updated=())
    return adapter


def shipped(
    op: str, function: Function, name: str, *, framework: str = "torch", **options: Any
) -> FunctionAdapter:
    """The adapter of a function of a package, or of ours, under a name."""
    return operator_kernel(op, function, {"name": name, **options}, FRAMEWORKS[framework])


def _words(title: str, operator: FunctionOperator, given: Mapping[str, Any]) -> dict[str, Any]:
    """The operator's own options, those not given with their defaults."""
    defaults: dict[str, Any] = (
        {name: values[0] for name, values in operator.words.items()}
        | dict(operator.numbers)
        | dict.fromkeys(operator.functions)
    )
    if unknown := [name for name in given if name not in defaults]:
        known = ", ".join((*defaults, *SHARED))
        raise AdapterError(
            f"kernel {title!r}: {unknown[0]}: op={operator.name!r} has no such"
            f" option{advice(unknown[0])}; it has {known}"
        )
    for name, value in given.items():
        allowed = operator.words.get(name)
        if name in operator.functions:
            if not callable(value):
                raise AdapterError(f"kernel {title!r}: {name}: wanted a function, got {value!r}")
            continue
        if allowed is not None and value not in allowed:
            raise AdapterError(
                f"kernel {title!r}: {name}: wanted one of {', '.join(allowed)}, got {value!r}"
            )
        if allowed is None and not (isinstance(value, int | float) and value > 0):
            raise AdapterError(f"kernel {title!r}: {name}: wanted a positive number, got {value!r}")
    return defaults | dict(given)


def _parameters(
    title: str, function: Function, operator: FunctionOperator, *, step: bool = False
) -> frozenset[str]:
    """The operator's parameters that a function takes: first by position, others by name. One of
    **kwargs takes every keyword.

    Args:
        step: whether it is the decode entry point, which never gets a pack.
    """
    parameters = signature_of(function).parameters.values()
    by_position = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.name not in operator.keywords
    ]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        taken = len(operator.positional)
    else:
        taken = len(by_position)
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        by_name += operator.keywords
    others = [p.name for p in by_position[len(operator.positional) :] if p.default is p.empty]
    others += [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in operator.keywords
    ]
    optional = [tensor.name for tensor in operator.signature.inputs if tensor.optional]
    needed = [name for name in operator.positional if name not in optional]
    if others or taken < len(needed):
        wanted = operator.form(step=step)
        said = f"needs {others[0]}, which no call has" if others else f"takes {taken} by position"
        raise AdapterError(
            f"kernel {title!r}: wanted a {'step' if step else 'function'} {wanted}, of which"
            f" keywords may be left out; this one {said}"
        )
    return frozenset(
        (*operator.positional[:taken], *(name for name in by_name if name in operator.keywords))
    )


@final
class FunctionAdapter(Adapter):
    """What `kernel(op=...)` makes."""

    def __init__(
        self,
        name: str,
        operator: FunctionOperator,
        function: Function,
        declared: FunctionDeclaration,
        words: Mapping[str, Any],
    ) -> None:
        self.name, self.op, self._declared, self._function = name, operator.name, declared, function
        self.dtypes = tuple(declared.dtypes)
        self.device = declared.device
        self.isolated = isolated_by_default(declared.device, declared=declared.isolate)
        self.deterministic = declared.deterministic
        names = _parameters(name, function, operator)
        self.takes = FunctionTakes(
            names,
            words,
            tuple(declared.widths),
            operator.returns(names, words, final_state=declared.final_state),
        )
        self._step_takes = self._taken_by_a_step(operator)
        self.no_backward = operator.undifferentiated(self.takes, declared=declared.gradients)
        self.differentiable = not self.no_backward
        if wrong := operator.wrong(self.takes):
            raise AdapterError(f"kernel {name!r}: {wrong}")
        self._operator, self._framework, self._ran = operator, framework_of(function), NOTHING_YET
        self.barriers, self.compiled = self._framework.barriers, self._framework.compiled
        if misplaced := [dtype for dtype in self.dtypes if dtype not in operator.formats]:
            raise AdapterError(
                f"kernel {name!r}: dtypes: wanted some of {', '.join(operator.formats)}, got"
                f" {misplaced[0]!r}"
            )
        if words.get("packing", "none") not in ("none", *names):
            missing = words["packing"]
            raise AdapterError(
                f"kernel {name!r}: packing={missing!r}, but the signature does not name {missing};"
                " add it, or leave it out"
            )
        formats = (*self.dtypes, *operator.beside(words))
        self._contracts = {dtype: self._contract_of(dtype) for dtype in formats}

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The decorated function itself."""
        return self._function(*args, **keywords)

    def _contract_of(self, dtype: str) -> StorageContract:
        declared = self._declared.contract
        declared = declared.get(dtype) if isinstance(declared, Mapping) else declared
        if isinstance(declared, StorageContract):
            return declared
        if declared is None:
            return next(iter(self._operator.contracts(FORMATS[dtype]).values()))
        try:
            return self._operator.named_contract(str(declared), FORMATS[dtype])
        except ContractError as error:
            raise AdapterError(f"kernel {self.name!r}: contract: {error}") from None

    def _taken_by_a_step(self, operator: FunctionOperator) -> FunctionTakes:
        """What the decode entry point takes: what its own signature names, or but a pack by `**`.

        Raises:
            AdapterError: it lacks an argument that the function has.
        """
        step = self._declared.step
        if step is None:
            return self.takes
        named, offsets = signature_of(step).parameters, operator.signature.names(Role.OFFSETS)
        taken = _parameters(self.name, step, operator, step=True)
        names = frozenset(name for name in taken if name not in offsets or name in named)
        self.step_form = f"{operator.form(step=True)} -> ({', '.join(self.takes.returns)}), T = 1"
        lacking = [name for name in self.takes.names if name not in {*names, *offsets}]
        if lacking:
            raise AdapterError(
                f"kernel {self.name!r}: step: its signature lacks {min(lacking)}, which the"
                f" kernel's names; wanted a step {self.step_form}"
            )
        return replace(self.takes, names=names)

    def begin(self, case: str) -> None:
        self._ran = NOTHING_YET

    def missing(self) -> str | None:
        return self._framework.missing() or self._declared.missing() or lacks_device(self.device)

    def contract(self, dtype: str) -> Any:
        if dtype not in self._contracts:
            raise AdapterError(f"dtype: {self.name} takes {', '.join(self.dtypes)}, got {dtype!r}")
        return self._contracts[dtype]

    def supports(self, problem: Any) -> str | None:
        own = self._declared.supports
        return self._operator.refuses(problem, self.takes) or (
            None if own is None else own(problem)
        )

    def exposes(self, problem: Any) -> tuple[str, ...]:
        return self.takes.returns

    def differentiates(self, problem: Any) -> tuple[str, ...]:
        return self._operator.differentiated(self.takes)

    def received(self, inputs: Any) -> Any:
        return self._operator.received(inputs, self.takes)

    def forward(self, inputs: Any) -> dict[str, Any]:
        return on_device(self.device, lambda x: self._called(x, {}), inputs)

    def step(self, inputs: Any) -> dict[str, Any]:
        return on_device(self.device, lambda x: self._called(x, {}, step=True), inputs)

    def gradients(self, inputs: Any, cotangents: Any) -> dict[str, Any]:
        if not self.differentiable:
            raise ForwardOnlyError(f"{self.name} has no backward")
        return gradients_on_device(self.device, self._differentiated, inputs, cotangents)

    # A graph is wanted, whatever the caller wants for itself.
    @torch.inference_mode(mode=False)
    def _differentiated(self, inputs: Any, cotangents: Mapping[str, Any]) -> dict[str, Any]:
        given, signature = inputs.tensors(), inputs.signature
        sources = {dx: name for dx, name in signature.gradients.items() if name in given}
        leaves = leaves_of({name: given[name] for name in sources.values()})
        call = replace(inputs, **leaves)
        by_output = {
            signature.cotangents[name]: dy for name, dy in cotangents.items() if dy is not None
        }
        found = derivatives(lambda: self._called(call, {}), leaves, by_output)
        # A gradient lies where its tensor does, and rows of nobody have none.
        return {
            dx: self._operator.canonical(name, found[name], inputs, self.takes)
            for dx, name in sources.items()
            if name in found
        }

    def called_with(self, inputs: Any, unknown: Mapping[str, Any]) -> None:
        self._called(inputs, unknown)

    def proof(self) -> str:
        return self._ran if self._declared.proof is None else self._declared.proof()

    def environment(self) -> dict[str, str]:
        own = self._declared.environment
        return {
            **super().environment(),
            **self._framework.environment(),
            **({} if own is None else own()),
        }

    def returned(self, inputs: Any) -> dict[str, Any]:
        return on_device(self.device, lambda x: self._parts(x, {}), inputs)

    def _called(
        self, call: Any, unknown: Mapping[str, Any], *, step: bool = False
    ) -> dict[str, Any]:
        return {
            name: (
                self._operator.canonical(name, value, call, self.takes)
                if isinstance(value, Tensor)
                else value
            )
            for name, value in self._parts(call, unknown, step=step).items()
        }

    def _parts(
        self, call: Any, unknown: Mapping[str, Any], *, step: bool = False
    ) -> dict[str, Any]:
        """What the function returned, or the decode entry point, by name, as it returned it."""
        takes = self._step_takes if step else self.takes
        function = (step and self._declared.step) or self._function
        returned = self._operator.invoked(function, call, takes, unknown)
        self._ran = place_of(function)
        parts: tuple[Any, ...] = (returned,)
        if isinstance(returned, tuple | list):
            parts = tuple(returned)
        named = dict(zip(self._operator.signature.returned, (*parts, None, None), strict=False))
        return {name: value for name, value in named.items() if name in self.takes.returns}
