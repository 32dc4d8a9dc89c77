"""One decorated function is an adapter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch

from kdaverify.adapters.activations import ActivationCall, ActivationError, checked
from kdaverify.adapters.base import NOTHING_YET, OUTPUTS, Adapter, AdapterError, Output
from kdaverify.adapters.conventions import TOKENS, ConventionError, Conventions
from kdaverify.adapters.handover import CONVERTED, Handover, fold_scale
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.declared import Declared, declared_contracts
from kdaverify.problems import Problem
from oracles.autograd import derivatives
from oracles.gradients import GRADIENTS, Cotangents, Gradients
from oracles.inputs import Inputs

Function = Callable[..., Any]
Scale = Literal["argument", "fixed", "folded"]
Padding = Literal["zero", "undefined"]
SCALES: Final = ("argument", "fixed", "folded")
PADDINGS: Final = ("zero", "undefined")
OPTIONAL: Final = ("scale", "initial_state", "cu_seqlens", "segment_ids")


def kernel(
    *,
    name: str | None = None,
    contract: Declared | Mapping[str, Declared] | None = None,
    layout: str = "bthd",
    state: str = "kv",
    gate: str = "log",
    beta: str = "value",
    packing: str = "none",
    dtypes: Sequence[str] = ("fp32",),
    scale: Scale | None = None,
    padding: Padding = "zero",
    final_state: bool = True,
    step: Function | None = None,
    supports: Callable[[Problem], str | None] | None = None,
    proof: Callable[[], str] | None = None,
    environment: Callable[[], Mapping[str, str]] | None = None,
    activations: Mapping[str, ActivationCall] | None = None,
    deterministic: bool = True,
) -> Callable[[Function], KernelAdapter]:
    """Turns a function (q, k, v, g, beta, *, scale, initial_state, cu_seqlens | segment_ids) -> (o, final_state) into an adapter.

    The function gets torch tensors in the declared conventions; of the four keywords it gets those its signature names
    (**kwargs names none). What is not declared takes the strictest reading.

    Args:
        name: shown in every record; the function's own name by default.
        contract: name, .toml file (looked up beside the function's own first) or Contract, for all dtypes or per dtype. Undeclared it is
            recurrent-fp64 for fp64 and recurrent-fp32 for all others: for 16-bit inputs that allows one rounding, of o.
        layout: bthd, bhtd or thd.
        state: kv or vk.
        gate: log, log2, decay or raw.
        beta: value or logit.
        packing: cu_seqlens, segment_ids or none.
        dtypes: of q, k, v, beta and o, of fp64, fp32, bf16, fp16; gates and states come in fp32 (fp64 beside fp64).
        scale: argument (passed), fixed (the kernel always takes K^-1/2), folded (q comes multiplied). By default argument if the
            signature names scale, else fixed.
        padding: what rows of o past the last offset of a pack hold: zero, or undefined (never judged). A kernel that sees
            segment_ids cannot know padding, so there it is always undefined.
        final_state: False if the function returns o alone.
        step: the decode entry point, a function like this one for T = 1; by default this one.
        supports: gets a Problem; returns None or why the interface cannot take it.
        proof: returns what ran, as the kernel's framework observed it; by default the function and where it is.
        environment: returns what to record beside torch's version (package versions, device, mode).
        activations: the kernel's own gate_softplus, gate_bounded, beta_sigmoid or l2norm, to be judged by themselves.
        deterministic: False if the same call may give other bits, as sums by atomic additions do.
    Returns:
        A decorator; the adapter it makes can still be called like the function.
    Raises:
        AdapterError: an option has no such value, or the signature does not fit.
    """
    conventions = {"layout": layout, "state": state, "gate": gate, "beta": beta, "packing": packing}
    options = _Options(contract, dtypes, scale, padding, final_state, step, supports, proof, environment, activations or {}, deterministic)

    def decorate(function: Function) -> KernelAdapter:
        return _adapted(name or getattr(function, "__name__", type(function).__name__), function, conventions, options)

    return decorate


@dataclass(frozen=True)
class _Options:
    """The options of `kernel` as given, but for its name and conventions."""

    contract: Declared | Mapping[str, Declared] | None
    dtypes: Sequence[str]
    scale: str | None
    padding: str
    final_state: bool
    step: Function | None
    supports: Callable[[Problem], str | None] | None
    proof: Callable[[], str] | None
    environment: Callable[[], Mapping[str, str]] | None
    activations: Mapping[str, ActivationCall]
    deterministic: bool


def _adapted(title: str, function: Function, chosen: Mapping[str, str], options: _Options) -> KernelAdapter:
    try:
        conventions = Conventions(**chosen)
        contracts = declared_contracts(options.contract, options.dtypes, beside=_folder(function))
        activations = checked(options.activations)
    except (ConventionError, ContractError, ActivationError) as error:
        raise AdapterError(f"kernel {title!r}: {error}") from None
    entry = _entry(title, function)
    padding = _one_of(title, "padding", options.padding, PADDINGS)
    declared = _Declaration(
        contracts=contracts,
        scale=_scale(title, options.scale, entry),
        padding_undefined=conventions.packing == "segment_ids" or padding == "undefined",
        final_state=options.final_state,
        supports=options.supports or (lambda _: None),
        proof=options.proof,
        environment=options.environment or dict,
        activations=activations,
        deterministic=options.deterministic,
    )
    if conventions.layout == "thd" and "cu_seqlens" not in entry.keywords:
        raise AdapterError(f"kernel {title!r}: layout thd always passes cu_seqlens, but the signature does not name it; add it")
    return KernelAdapter(title, conventions, entry, entry if options.step is None else _entry(title, options.step), declared)


def _folder(function: Function) -> Path | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else Path(code.co_filename).parent


@dataclass(frozen=True)
class _Entry:
    """A function and how to call it: which optional keywords it takes, and whether it names the five tensors."""

    function: Function
    keywords: tuple[str, ...]
    by_name: bool

    def __call__(self, arguments: Mapping[str, Any], unknown: Mapping[str, Any] = {}) -> Any:  # never written to
        keywords = {name: arguments[name] for name in self.keywords} | {**unknown}
        if self.by_name:
            return self.function(**{name: arguments[name] for name in TOKENS}, **keywords)
        return self.function(*(arguments[name] for name in TOKENS), **keywords)

    @property
    def place(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


@dataclass(frozen=True)
class _Declaration:
    contracts: dict[str, Contract]
    scale: Scale
    padding_undefined: bool
    final_state: bool
    supports: Callable[[Problem], str | None]
    proof: Callable[[], str] | None
    environment: Callable[[], Mapping[str, str]]
    activations: Mapping[str, ActivationCall]
    deterministic: bool


class KernelAdapter(Adapter):
    """What `kernel` makes; also the machinery of adapters that are one function."""

    def __init__(self, name: str, conventions: Conventions, entry: _Entry, step: _Entry, declared: _Declaration) -> None:
        self.name = name
        self.conventions = conventions
        self.dtypes = tuple(declared.contracts)
        self.deterministic = declared.deterministic
        self._entry, self._step, self._declared = entry, step, declared
        self._ran = NOTHING_YET

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """The decorated function itself."""
        return self._entry.function(*args, **keywords)

    def begin(self, case: str) -> None:
        # What ran in an earlier case proves nothing of this one.
        del case
        self._ran = NOTHING_YET

    def contract(self, dtype: str) -> Contract:
        if dtype not in self._declared.contracts:
            raise AdapterError(f"dtype: {self.name} takes {', '.join(self.dtypes)}, got {dtype!r}")
        # What the conventions make a kernel compute rounds too, and is the kernel's own.
        gate = "log" if self.conventions.gate == "raw" else self.conventions.gate
        return replace(self._declared.contracts[dtype], gate=gate, beta=self.conventions.beta)

    def supports(self, problem: Problem) -> str | None:
        limits = _limits(self.conventions, self._entry.keywords, self._declared.scale, problem)
        return next(limits, None) or self._declared.supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        hidden = problem.packed and self.conventions.packing == "segment_ids"
        return OUTPUTS if self._declared.final_state and not hidden else OUTPUTS[:1]

    def received(self, inputs: Inputs) -> Inputs:
        return self.conventions.received(self._folded(inputs))

    def forward(self, inputs: Inputs) -> Output:
        return self._call(self._entry, inputs)

    def step(self, inputs: Inputs) -> Output:
        return self._call(self._step, inputs)

    # A graph is wanted, whatever the caller wants for itself.
    @torch.inference_mode(mode=False)
    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        """With respect to what the function receives, in canonical axes: the leaves are its own arguments."""
        handed = self.conventions.arguments(self._folded(inputs))
        leaves = {name: handed[name].detach().clone().requires_grad_() for name in CONVERTED if handed[name] is not None}
        handover = Handover(self.conventions, inputs, {**handed, **leaves}, self._declared.padding_undefined)

        def outputs() -> tuple[Any, Any]:
            returned = self._split(self._entry({**handed, **leaves}))
            self._ran = self._entry.place
            return handover.canonical("o", returned[0]), handover.canonical("final_state", returned[1])

        found = derivatives(outputs, leaves, cotangents)
        handover.show_edits()
        return Gradients(
            **{
                gradient: self.conventions.in_canonical_axes(name, found[name], inputs) if name in found else None
                for gradient, name in GRADIENTS.items()
            }
        )

    def called_with(self, inputs: Inputs, unknown: Mapping[str, Any]) -> None:
        self._entry(self.conventions.arguments(self._folded(inputs)), unknown)

    def proof(self) -> str:
        return self._ran if self._declared.proof is None else self._declared.proof()

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        del dtype
        return self._declared.activations

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        if conventions.layout == "thd" and "cu_seqlens" not in self._entry.keywords:
            return None
        return KernelAdapter(self.name, conventions, self._entry, self._step, self._declared)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._declared.environment()}

    def _folded(self, inputs: Inputs) -> Inputs:
        return fold_scale(inputs) if self._declared.scale == "folded" else inputs

    def _call(self, entry: _Entry, inputs: Inputs) -> Output:
        meant = self._folded(inputs)
        handed = self.conventions.arguments(meant)
        handover = Handover(self.conventions, inputs, handed, self._declared.padding_undefined)
        o, final_state = self._split(entry(handed))
        self._ran = entry.place
        return handover.output(o, final_state)

    def _split(self, returned: Any) -> tuple[Any, Any]:
        if isinstance(returned, tuple | list) and len(returned) == len(OUTPUTS):  # pyright: ignore[reportUnknownArgumentType]
            return returned[0], returned[1] if self._declared.final_state else None  # pyright: ignore[reportUnknownVariableType]
        return returned, None


def _limits(conventions: Conventions, keywords: tuple[str, ...], scale: Scale, problem: Problem) -> Iterator[str]:
    """What the declared interface cannot express of `problem`."""
    packing, stateful = conventions.packing, problem.state != "absent"
    if conventions.gate == "raw":
        yield "raw gates: the activation stage is not driven yet; wrap the kernel to take gate='log'"
    if problem.packed and packing == "none":
        yield "no packed sequences (packing='none')"
    if problem.packed and packing not in keywords:
        yield f"no packed sequences: the signature does not name {packing}"
    if stateful and "initial_state" not in keywords:
        yield "no initial state: the signature does not name initial_state"
    if stateful and problem.packed and packing == "segment_ids":
        yield "no initial states of a pack: segment_ids do not show empty sequences"
    if scale == "fixed" and problem.scale not in (None, problem.K**-0.5):
        yield f"no scale but K^-1/2, wanted {problem.scale} (scale='fixed')"
    if conventions.beta == "logit" and bool((problem.inputs().beta > 1).any()):
        yield "no beta above 1 (beta='logit')"


def _scale(title: str, declared: str | None, entry: _Entry) -> Scale:
    takes = "scale" in entry.keywords
    scale = _one_of(title, "scale", declared or ("argument" if takes else "fixed"), SCALES)
    if (scale == "argument") != takes:
        has = "names" if takes else "does not name"
        raise AdapterError(f"kernel {title!r}: scale={scale!r}, but the signature {has} scale; change one of them")
    return cast(Scale, scale)


def _one_of(title: str, option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise AdapterError(f"kernel {title!r}: {option}: wanted one of {', '.join(allowed)}, got {value!r}")
    return value


def _entry(title: str, function: Function) -> _Entry:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise AdapterError(f"kernel {title!r}: {function!r} has no readable signature; wrap it in a Python function") from None
    named = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    by_name = all(name in named for name in TOKENS)
    leading = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = TOKENS if by_name else tuple(leading[: len(TOKENS)])
    if len(taken) < len(TOKENS):
        raise AdapterError(f"kernel {title!r}: wanted a function of (q, k, v, g, beta, ...), got ({', '.join(parameters)})")
    keywords = tuple(name for name in OPTIONAL if name in named and name not in taken)
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    extra = [name for name in needed if name not in (*taken, *keywords)]
    if extra:
        known = ", ".join((*TOKENS, *OPTIONAL))
        raise AdapterError(f"kernel {title!r}: nothing to pass for {', '.join(extra)}; give it a default (passed are {known})")
    return _Entry(function, keywords, by_name)
