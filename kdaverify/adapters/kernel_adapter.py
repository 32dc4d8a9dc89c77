"""The adapter of one declared function of the delta rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import (
    NOTHING_YET,
    Adapter,
    AdapterError,
    Output,
    isolated_by_default,
)
from kdaverify.adapters.convention_checks import parameters_of
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.declaration import Declaration, tokens_of
from kdaverify.adapters.delta_product import taking
from kdaverify.adapters.entry_point import EntryPoint, Function, entry_point
from kdaverify.adapters.frameworks import framework_of
from kdaverify.adapters.handover import Handover, fold_scale
from kdaverify.adapters.placement import gradients_on_device, lacks_device, on_device
from kdaverify.adapters.stages import StageCall
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.declared import declared_contracts
from kdaverify.operators.pointwise.call import ActivationCall, ActivationError, checked
from kdaverify.problems import Problem
from oracles.autograd import ForwardOnlyError, derivatives, leaves_of
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import FLOATING, GRADIENTS, OUTPUTS

WITHOUT_SCALE: Final = "without-scale"


@dataclass(frozen=True)
class OwnCalls:
    """What a kernel brings along beside its function: see `kernel`."""

    step: Function | None = None
    supports: Callable[[Problem], str | None] = lambda _: None
    proof: Callable[[], str] | None = None
    environment: Callable[[], Mapping[str, str]] = dict
    activations: Mapping[str, ActivationCall] = field(default_factory=dict[str, ActivationCall])
    stages: Mapping[str, StageCall] = field(default_factory=dict[str, StageCall])
    missing: Callable[[], str | None] = lambda: None


def adapted(
    declaration: Declaration, function: Function, own: OwnCalls | None = None
) -> KernelAdapter:
    """The adapter of a declared function.

    Raises:
        AdapterError: the declaration contradicts itself, or the signature.
    """
    title, own = declaration.name, own or OwnCalls()
    conventions, tokens = declaration.conventions, tokens_of(declaration.gates)
    entry, step = (
        entry_point(title, one, tokens, gate=conventions.gate)
        for one in (function, own.step or function)
    )
    try:
        contracts = declared_contracts(
            declaration.contract,
            declaration.dtypes,
            backward=declaration.backward,
            beside=_folder(function),
        )
        checked(own.activations)
    except (ContractError, ActivationError) as error:
        raise AdapterError(f"kernel {title!r}: {error}") from None
    if conventions.gates == "channel" and any(
        contract.decay == "scalar" for contract in contracts.values()
    ):
        said = (
            "is of kernels whose channels share a gate, but gates='channel'; declare gates='head'"
            " or another contract"
        )
        raise AdapterError(f"kernel {title!r}: contract: decay 'scalar' {said}")
    _check_signature(title, conventions, entry)
    if conventions.norm is not None and "fp64" in contracts:
        raise AdapterError(
            f"kernel {title!r}: dtypes: qk={conventions.qk!r} is judged in fp32, bf16 and fp16;"
            " leave out fp64, or take normalised rows"
        )
    if parameters_of(step.keywords) != parameters_of(entry.keywords):
        raise AdapterError(
            f"kernel {title!r}: step: its signature names {parameters_of(step.keywords)} of A_log"
            f" and dt_bias, that of the kernel {parameters_of(entry.keywords)}; name the same"
        )
    return KernelAdapter(declaration, contracts, (entry, step), own)


def _check_signature(title: str, conventions: Conventions, entry: EntryPoint) -> None:
    """Refuses conventions that the signature has no place for."""
    takes = "scale" in entry.keywords
    if (conventions.scale == "argument") != takes:
        has = "names" if takes else "does not name"
        raise AdapterError(
            f"kernel {title!r}: scale={conventions.scale!r}, but the signature {has} scale; change"
            " one of them"
        )
    if conventions.layout == "thd" and "cu_seqlens" not in entry.keywords:
        raise AdapterError(
            f"kernel {title!r}: layout thd always passes cu_seqlens, but the signature does not"
            " name it; add it"
        )
    if conventions.gate_parameters != parameters_of(entry.keywords):
        raise AdapterError(
            f"kernel {title!r}: gate_parameters={conventions.gate_parameters!r}, but the signature"
            f" names {parameters_of(entry.keywords)}; change one of them"
        )
    if conventions.packing != "none" and conventions.packing not in entry.keywords:
        said = (
            f"packing={conventions.packing!r}, but the signature does not name"
            f" {conventions.packing}"
        )
        raise AdapterError(f"kernel {title!r}: {said}; add it, or declare packing='none'")


def _form(step: EntryPoint, conventions: Conventions) -> str:
    """The signature that a decode entry point is called by, which never gets a pack."""
    packs = () if conventions.layout == "thd" else ("cu_seqlens", "segment_ids")
    options = [name for name in step.keywords if name not in packs]
    form = f"({', '.join(step.tokens)}, *, {', '.join(options)}) -> (o, final_state)"
    return f"{form}, T = 1, in layout {conventions.layout}"


def _folder(function: Function) -> Path | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Path(code.co_filename).parent


class KernelAdapter(Adapter):
    """What `kernel` makes; also the machinery of adapters that are one function."""

    def __init__(
        self,
        declaration: Declaration,
        contracts: dict[str, Contract],
        entries: tuple[EntryPoint, EntryPoint],
        own: OwnCalls,
    ) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.conventions = declaration.conventions
        self.domain = declaration.domain
        self.dtypes = tuple(contracts)
        self.device = declaration.device
        self.isolated = isolated_by_default(declaration.device, declared=declaration.isolate)
        self.deterministic = declaration.deterministic
        self.differentiable = declaration.gradients
        activation = self.conventions.activation
        self.sums_gates = self.differentiable and bool(activation and activation.parameters)
        self._entries, self._own = entries, own
        self.step_form = "" if own.step is None else _form(entries[1], self.conventions)
        self.steps = int(getattr(entries[0].function, "steps", 1))
        self.unjudged = tuple(getattr(entries[0].function, "unjudged", ()))
        self._contracts = {name: one.of_steps(self.steps) for name, one in contracts.items()}
        self._framework = framework_of(entries[0].function)
        self.barriers = self._framework.barriers
        self._undefined = (
            self.conventions.packing == "segment_ids" or self.conventions.padding == "undefined"
        )
        self._ran = NOTHING_YET
        self._variants: Mapping[str, Adapter] = (
            {WITHOUT_SCALE: self._without_scale()} if entries[0].scale_defaults_to_none else {}
        )

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The decorated function itself."""
        with taking(self.conventions.beta):
            return self._entries[0].function(*args, **keywords)

    def begin(self, case: str) -> None:
        # What ran in an earlier case is no evidence for this one.
        self._ran = NOTHING_YET

    def missing(self) -> str | None:
        return self._framework.missing() or self._own.missing() or lacks_device(self.device)

    def contract(self, dtype: str) -> Contract:
        if dtype not in self._contracts:
            raise AdapterError(f"dtype: {self.name} takes {', '.join(self.dtypes)}, got {dtype!r}")
        # What the conventions make a kernel compute rounds too, and is the kernel's own.
        return replace(
            self._contracts[dtype],
            gate=self.conventions.gate_form,
            beta=self.conventions.beta,
            qk=self.conventions.rows_form,
        )

    def supports(self, problem: Problem) -> str | None:
        return self.domain.refuses(problem) or self._own.supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        hidden = problem.packed and self.conventions.packing == "segment_ids"
        return OUTPUTS if self.declaration.final_state and not hidden else OUTPUTS[:1]

    def received(self, inputs: Inputs) -> Inputs:
        return self.conventions.received(self._folded(inputs))

    def copied(self) -> tuple[str, ...]:
        return self.conventions.recomputed()

    def forward(self, inputs: Inputs) -> Output:
        return on_device(self.device, lambda there: self._call(self._entries[0], there), inputs)

    def step(self, inputs: Inputs) -> Output:
        return on_device(self.device, lambda there: self._call(self._entries[1], there), inputs)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        """With respect to what the function receives, in canonical axes."""
        if not self.differentiable:
            raise ForwardOnlyError(f"{self.name} declares gradients=False")
        return gradients_on_device(self.device, self._differentiated, inputs, cotangents)

    def called_with(self, inputs: Inputs, unknown: Mapping[str, Any]) -> None:
        self._enter(self._entries[0], self.conventions.arguments(self._folded(inputs)), unknown)

    def proof(self) -> str:
        return self._ran if self._own.proof is None else self._own.proof()

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        return self._own.activations

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        return self._own.stages

    def variants(self) -> Mapping[str, Adapter]:
        return self._variants

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        declaration = self.declaration.model_copy(update=asdict(conventions))
        try:
            _check_signature(self.name, conventions, self._entries[0])
            other = KernelAdapter(declaration, self._contracts, self._entries, self._own)
        except AdapterError:
            return None
        # also what no kernel declares, such as how long the rows are that it normalises
        other.conventions = conventions
        return other

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._framework.environment(), **self._own.environment()}

    def _without_scale(self) -> KernelAdapter:
        first, step = (entry.without_scale() for entry in self._entries)
        alone = KernelAdapter(self.declaration, self._contracts, (first, step), self._own)
        alone.domain = replace(self.domain, scales=False)
        return alone

    def _folded(self, inputs: Inputs) -> Inputs:
        return fold_scale(inputs) if self.conventions.scale == "folded" else inputs

    def _enter(
        self, entry: EntryPoint, handed: Mapping[str, Any], unknown: Mapping[str, Any] = {}
    ) -> Any:
        with taking(self.conventions.beta):
            return entry(handed, unknown)

    def _call(self, entry: EntryPoint, inputs: Inputs) -> Output:
        handed = self.conventions.arguments(self._folded(inputs), views=True)
        handover = Handover(self.conventions, inputs, handed, self._undefined)
        o, final_state = self._split(self._enter(entry, handed))
        self._ran = entry.place
        return handover.output(o, final_state)

    def parameter_gradients(self, inputs: Inputs, cotangents: Cotangents) -> dict[str, Tensor]:
        activation = self.conventions.activation
        if activation is None or not self.sums_gates:
            return {}
        there = inputs.on(self.device)
        given = {name: dy.to(self.device) for name, dy in cotangents.by_output().items()}
        found = self._derivatives(there, given, activation.parameters)
        axes = self.conventions
        return {
            "g": axes.in_canonical_axes("g", found["g"], there).to(inputs.device),
            **{
                name: axes.parameter_back(name, found[name], there).to(inputs.device)
                for name in activation.parameters
            },
        }

    def _differentiated(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = self._derivatives(inputs, cotangents.by_output())
        by_gradient = {gradient: (name, found.get(name)) for gradient, name in GRADIENTS.items()}
        return Gradients(
            **{
                gradient: (
                    None
                    if dx is None
                    # Exact: of x in fewer bits than g alone.
                    else self.conventions.in_canonical_axes(name, dx, inputs).to(
                        getattr(inputs, name).dtype
                    )
                )
                for gradient, (name, dx) in by_gradient.items()
            }
        )

    # A graph is wanted, whatever the caller wants for itself.
    @torch.inference_mode(mode=False)
    def _derivatives(
        self, inputs: Inputs, cotangents: Mapping[str, Tensor], parameters: Sequence[str] = ()
    ) -> dict[str, Tensor]:
        """Of what the function receives, by name, its parameters included, in its own axes."""
        entry = self._entries[0]
        handed = self.conventions.arguments(self._folded(inputs), views=True)
        names = [name for name in (*FLOATING, *parameters) if handed[name] is not None]
        leaves = leaves_of({name: handed[name] for name in names})
        handover = Handover(self.conventions, inputs, {**handed, **leaves}, self._undefined)

        def outputs() -> dict[str, Any]:
            returned = self._split(self._enter(entry, {**handed, **leaves}))
            self._ran = entry.place
            named = zip(OUTPUTS, returned, strict=True)
            return {name: handover.canonical(name, value) for name, value in named}

        found = derivatives(outputs, leaves, cotangents)
        handover.show_edits()
        return found

    def _split(self, returned: Any) -> tuple[Any, Any]:
        if isinstance(returned, tuple | list) and len(returned) == len(OUTPUTS):
            return returned[0], (returned[1] if self.declaration.final_state else None)
        return returned, None
