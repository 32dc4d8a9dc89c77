"""One decorated function is an adapter."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError

from kdaverify.adapters.base import NOTHING_YET, Adapter, AdapterError, Output
from kdaverify.adapters.conventions import Conventions, packing_of
from kdaverify.adapters.declaration import Declaration, tokens_of
from kdaverify.adapters.entry_point import EntryPoint, Function, entry_point
from kdaverify.adapters.frameworks import FRAMEWORKS, Framework, framework_of
from kdaverify.adapters.handover import Handover, fold_scale
from kdaverify.adapters.placement import gradients_on_device, lacks_device, on_device
from kdaverify.adapters.stages import StageCall
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.declared import Declared, declared_contracts
from kdaverify.canonical import explain
from kdaverify.operator import DEFAULT
from kdaverify.operators.pointwise.call import ActivationCall, ActivationError, checked
from kdaverify.problems import Problem
from kdaverify.problems.domain import EVERY_BETA, EVERY_GATE
from oracles.autograd import ForwardOnlyError, derivatives, leaf
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import FLOATING, GRADIENTS, OUTPUTS

WITHOUT_SCALE: Final = "without-scale"


def kernel(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    contract: Declared | Mapping[str, Declared] | None = None,
    backward: Declared | Mapping[str, Declared] | None = None,
    layout: str = "bthd",
    state: str = "kv",
    gate: str = "log",
    gates: str = "channel",
    heads: str = "interleaved",
    beta: str = "value",
    packing: str | None = None,
    dtypes: Sequence[str] = ("fp32",),
    scale: str | None = None,
    padding: str | None = None,
    final_state: bool = True,
    widths: Sequence[int] | int = (),
    square: bool = False,
    head_ratios: Sequence[int] = (),
    gate_range: tuple[float, float] = EVERY_GATE,
    beta_range: tuple[float, float] = EVERY_BETA,
    length_multiple: int = 1,
    longest: int | None = None,
    device: str = "cpu",
    isolate: bool | None = None,
    deterministic: bool = True,
    gradients: bool = True,
    step: Function | None = None,
    supports: Callable[[Problem], str | None] | None = None,
    proof: Callable[[], str] | None = None,
    environment: Callable[[], Mapping[str, str]] | None = None,
    activations: Mapping[str, ActivationCall] | None = None,
    stages: Mapping[str, StageCall] | None = None,
    framework: str = "torch",
    op: str = DEFAULT,
    **own: Any,
) -> Any:
    """Turns a function (q, k, v, g, beta, *, scale, initial_state, cu_seqlens | segment_ids) -> (o,
    final_state) into an adapter.

    The function gets torch tensors, or JAX arrays, in the declared conventions; of the four
    keywords it gets those its signature names (**kwargs names none). Gradients are those of the
    arguments that it gets.

    Args:
        function: given by `@kernel` without parentheses, which declares nothing.
        name: shown in every record; the function's own name by default.
        contract: name, .toml file (looked up beside the function's own first) or Contract, for all
            dtypes or per dtype. Undeclared it is recurrent-fp64 for fp64 and recurrent-fp32, the
            strictest contract, for all others. With 16-bit inputs o alone is rounded then.
        backward: likewise, what the backward computes with where that is another pipeline than the
            forward, as where chunks have a recurrence, or autograd in fp32, for their backward.
        layout: bthd, bhtd or thd.
        state: kv or vk.
        gate: log, log2, decay or raw.
        gates: channel (g [B, T, HV, K]: KDA), head (g [B, T, HV]: Gated DeltaNet) or none (no g:
            DeltaNet).
        heads: interleaved (value head j reads key head j // (HV / H)) or tiled (j mod H).
        beta: value or logit.
        packing: cu_seqlens, segment_ids or none. By default what the signature names of the two,
            else none: a kernel that names offsets is tested on packs.
        dtypes: of q, k, v, beta and o, of fp64, fp32, bf16, fp16; gates and states come in fp32
            (fp64 beside fp64).
        scale: argument (passed), fixed (the kernel always takes K^-1/2), folded (q comes
            multiplied). By default argument if the signature names scale, else fixed.
        padding: what rows of o past the last offset of a pack hold: zero, or undefined (not
            compared). By default zero where packing is declared, else undefined, as nothing was
            promised. With segment_ids a kernel cannot distinguish padding, so it is always
            undefined there.
        final_state: False if the function returns o alone.
        widths, head_ratios: all values of K and V, and of HV / H, that it takes; () any.
        square: True if it takes K = V alone.
        gate_range, beta_range: (lowest, highest) log decay, and write strength, that it takes.
        length_multiple, longest: of which every length is a multiple, and tokens of a sequence at
            most.
        device: type of the torch device that it runs on: tensors are moved there and back.
        isolate: True runs it in a worker process, False in this one; by default as the command line
            chooses.
        deterministic: False if the same call may give other bits, as sums by atomic additions do.
        gradients: False if there is no backward to test.
        step: the decode entry point, a function like this one for T = 1; by default this one.
        supports: gets a Problem; returns None or why the interface cannot take it. Prefer the
            options above where they suffice: cases are then generated inside the domain, and
            nothing is skipped.
        proof: returns what ran, as the kernel's framework observed it; by default the function and
            where it is.
        environment: returns what to record besides torch's version (package versions, device,
            mode).
        activations: the kernel's own gate_softplus, gate_bounded, beta_sigmoid or l2norm, to be
            judged by themselves.
        stages: the kernel's own stages, to be judged by themselves.
        framework: torch or jax: whose arrays the function takes and returns. The backward of a JAX
            function is its `jax.vjp`, that of a `jax.custom_vjp` included; offsets and segment ids
            are int32 arrays.
        op: the operator that it implements. Functions of others take other arguments, and have
            options of their own:
            short_conv: (x, weight, bias, *, initial_state, cu_seqlens, activation) -> (y,
            final_state) or y; conv_state="W" or "W-1", packing="none" or "cu_seqlens", activation
            where the signature does not name it.
            gated_rms_norm: (x, gate, weight, *, eps, activation) -> y; eps, activation where the
            signature does not name them.
            layer: (hidden, *, cache, attention_mask, cu_seqlens, use_cache) -> (out, cache), or
            out; widths=D, reference, reset, reorder, longest: see the reference, whole layers.
            attention: (q, k, v, *, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal) -> (o, lse)
            or o; mla_decode: (q, cache, block_table, cache_seqlens, *, d_v, softmax_scale, causal)
            -> (o, lse); sparse_attention: (q, cache, indices, *, topk_length, d_v, softmax_scale)
            -> (o, lse), cache="rows" or "fp8", invalid="negative" or "outside"; merge_state: (o_a,
            lse_a, o_b, lse_b) -> (o, lse). lse="e", "2" or "none", empty_lse="-inf" or "+inf",
            causal_alignment="bottom_right" or "top_left".
            Of the options above they have name, contract, dtypes,
            widths (of W, or V), device, isolate, deterministic, gradients, final_state, step,
            supports, proof, environment and framework.
        own: options of the operator.
    Returns:
        A decorator, or the adapter where the function is given; an adapter can still be called like
        the function.
    Raises:
        AdapterError: an option has no such value, or the signature does not fit.
    """
    words: dict[str, Any] = {
        "contract": contract,
        "backward": backward,
        "layout": layout,
        "state": state,
        "gate": gate,
        "beta": beta,
        "dtypes": dtypes,
        "gates": gates,
        "heads": heads,
        "final_state": final_state,
        "widths": widths,
        "square": square,
        "head_ratios": head_ratios,
        "gate_range": gate_range,
        "beta_range": beta_range,
        "length_multiple": length_multiple,
        "longest": longest,
        "device": device,
        "isolate": isolate,
        "deterministic": deterministic,
        "gradients": gradients,
    }
    adapt = _framework(framework).adapt
    if op != DEFAULT or own:
        return _of_operator(op, function, _framework(framework), {**own, **_given(locals())})
    brought = OwnCalls(
        step and adapt(step),
        supports or (lambda _: None),
        proof,
        environment or dict,
        activations or {},
        stages or {},
    )

    def decorate(decorated: Function) -> KernelAdapter:
        title = name or getattr(decorated, "__name__", type(decorated).__name__)
        found = entry_point(title, decorated, tokens_of(gates))
        read = {
            "scale": scale or ("argument" if "scale" in found.keywords else "fixed"),
            "initial_state": "initial_state" in found.keywords,
            "packing": packing or packing_of(found.keywords),
            "padding": padding or ("undefined" if packing is None else "zero"),
        }
        return adapted(declaration_of(title, {**words, **read}), adapt(decorated), brought)

    return decorate if function is None else decorate(function)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `kernel` that have another value than their default."""
    parameters = inspect.signature(kernel).parameters
    named = {
        name: p.default
        for name, p in parameters.items()
        if p.kind is p.KEYWORD_ONLY and name not in ("op", "framework")
    }
    return {name: options[name] for name, default in named.items() if options[name] != default}


def _of_operator(
    op: str, function: Function | None, framework: Framework, options: Mapping[str, Any]
) -> Any:
    """The decorator, or the adapter, of another operator than KDA."""
    # Operators execute calls, which adapters are needed for: loaded with this module, each would
    # need the other first.
    from kdaverify.adapters.operator_kernel import operator_kernel

    if op == DEFAULT:
        raise AdapterError(f"kernel: {_no_option(next(iter(options)))}")
    if function is not None:
        return operator_kernel(op, function, options, framework)

    def decorate(decorated: Function) -> Any:
        return operator_kernel(op, decorated, options, framework)

    return decorate


def _no_option(name: str) -> str:
    parameters = inspect.signature(kernel).parameters.values()
    options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    near = difflib.get_close_matches(name, options, n=1)
    meant = f"; did you mean {near[0]}?" if near else "."
    return f"{name}: no such option{meant} Options of a KDA kernel: {', '.join(options)}"


def _framework(name: str) -> Framework:
    if name not in FRAMEWORKS:
        raise AdapterError(f"framework: wanted one of {', '.join(FRAMEWORKS)}, got {name!r}")
    return FRAMEWORKS[name]


def declaration_of(title: str, words: Mapping[str, Any]) -> Declaration:
    """The declaration of a kernel.

    Raises:
        AdapterError: a word has no such value.
    """
    given: dict[str, Any] = {**words, "name": title}
    for option in ("widths", "head_ratios", "dtypes"):
        value = given[option]
        given[option] = (value,) if isinstance(value, str | int) else tuple(value)
    try:
        return Declaration(**given)
    except ValidationError as error:
        raise AdapterError(f"kernel {title!r}: {explain(error)}") from None


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
    conventions, entry = (
        declaration.conventions,
        entry_point(title, function, tokens_of(declaration.gates)),
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
    return KernelAdapter(
        declaration,
        contracts,
        (entry, entry if own.step is None else entry_point(title, own.step, entry.tokens)),
        own,
    )


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
    if conventions.packing != "none" and conventions.packing not in entry.keywords:
        said = (
            f"packing={conventions.packing!r}, but the signature does not name"
            f" {conventions.packing}"
        )
        raise AdapterError(f"kernel {title!r}: {said}; add it, or declare packing='none'")


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
        self.declaration, self.name, self.conventions = (
            declaration,
            declaration.name,
            declaration.conventions,
        )
        self.domain, self.dtypes, self.device = (
            declaration.domain,
            tuple(contracts),
            declaration.device,
        )
        self.isolated, self.deterministic = bool(declaration.isolate), declaration.deterministic
        self.differentiable = declaration.gradients
        self._contracts, self._entries, self._own = contracts, entries, own
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
        return self._entries[0].function(*args, **keywords)

    def begin(self, case: str) -> None:
        # What ran in an earlier case proves nothing of this one.
        del case
        self._ran = NOTHING_YET

    def missing(self) -> str | None:
        return self._framework.missing() or self._own.missing() or lacks_device(self.device)

    def contract(self, dtype: str) -> Contract:
        if dtype not in self._contracts:
            raise AdapterError(f"dtype: {self.name} takes {', '.join(self.dtypes)}, got {dtype!r}")
        # What the conventions make a kernel compute rounds too, and is the kernel's own.
        gate = "log" if self.conventions.gate == "raw" else self.conventions.gate
        return replace(self._contracts[dtype], gate=gate, beta=self.conventions.beta)

    def supports(self, problem: Problem) -> str | None:
        if self.conventions.gate == "raw":
            return (
                "raw gates: the activation stage is not driven yet; wrap the kernel to take"
                " gate='log'"
            )
        return self.domain.refuses(problem) or self._own.supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        hidden = problem.packed and self.conventions.packing == "segment_ids"
        return OUTPUTS if self.declaration.final_state and not hidden else OUTPUTS[:1]

    def received(self, inputs: Inputs) -> Inputs:
        return self.conventions.received(self._folded(inputs))

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
        self._entries[0](self.conventions.arguments(self._folded(inputs)), unknown)

    def proof(self) -> str:
        return self._ran if self._own.proof is None else self._own.proof()

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        del dtype
        return self._own.activations

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        del dtype
        return self._own.stages

    def variants(self) -> Mapping[str, Adapter]:
        return self._variants

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        declaration = self.declaration.model_copy(update=asdict(conventions))
        try:
            _check_signature(self.name, conventions, self._entries[0])
            return KernelAdapter(declaration, self._contracts, self._entries, self._own)
        except AdapterError:
            return None

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self._framework.environment(), **self._own.environment()}

    def _without_scale(self) -> KernelAdapter:
        first, step = (entry.without_scale() for entry in self._entries)
        alone = KernelAdapter(self.declaration, self._contracts, (first, step), self._own)
        alone.domain = replace(self.domain, scales=False)
        return alone

    def _folded(self, inputs: Inputs) -> Inputs:
        return fold_scale(inputs) if self.conventions.scale == "folded" else inputs

    def _call(self, entry: EntryPoint, inputs: Inputs) -> Output:
        handed = self.conventions.arguments(self._folded(inputs))
        handover = Handover(self.conventions, inputs, handed, self._undefined)
        o, final_state = self._split(entry(handed))
        self._ran = entry.place
        return handover.output(o, final_state)

    # A graph is wanted, whatever the caller wants for itself.
    @torch.inference_mode(mode=False)
    def _differentiated(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        entry, handed = self._entries[0], self.conventions.arguments(self._folded(inputs))
        leaves = {name: leaf(handed[name]) for name in FLOATING if handed[name] is not None}
        handover = Handover(self.conventions, inputs, {**handed, **leaves}, self._undefined)

        def outputs() -> dict[str, Any]:
            returned = self._split(entry({**handed, **leaves}))
            self._ran = entry.place
            named = zip(OUTPUTS, returned, strict=True)
            return {name: handover.canonical(name, value) for name, value in named}

        found = derivatives(outputs, leaves, cotangents.by_output())
        handover.show_edits()
        by_gradient = {gradient: (name, found.get(name)) for gradient, name in GRADIENTS.items()}
        return Gradients(
            **{
                gradient: (
                    None if dx is None else self.conventions.in_canonical_axes(name, dx, inputs)
                )
                for gradient, (name, dx) in by_gradient.items()
            }
        )

    def _split(self, returned: Any) -> tuple[Any, Any]:
        if isinstance(returned, tuple | list) and len(returned) == len(OUTPUTS):  # pyright: ignore[reportUnknownArgumentType]
            return returned[0], (returned[1] if self.declaration.final_state else None)  # pyright: ignore[reportUnknownVariableType]
        return returned, None
