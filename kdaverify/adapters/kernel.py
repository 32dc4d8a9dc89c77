"""One decorated function is an adapter."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.convention_checks import packing_of, parameters_of
from kdaverify.adapters.declaration import Declaration, tokens_of
from kdaverify.adapters.entry_point import Function, entry_point
from kdaverify.adapters.frameworks import FRAMEWORKS, Framework
from kdaverify.adapters.kernel_adapter import KernelAdapter, OwnCalls, adapted
from kdaverify.adapters.stages import StageCall
from kdaverify.adapters.undeclared import advice
from kdaverify.budgets.declared import Declared
from kdaverify.canonical import explain
from kdaverify.operator import DEFAULT
from kdaverify.operators.pointwise.call import ActivationCall
from kdaverify.problems import Problem
from kdaverify.problems.domain import EVERY_BETA, EVERY_GATE
from oracles.gate_activation import LOWER_BOUND
from oracles.row_norm import EPSILON, GIVEN


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
    gate_format: str = "fp32",
    lower_bound: float = LOWER_BOUND,
    qk: str = GIVEN,
    norm_eps: float = EPSILON,
    gate_range: tuple[float, float] = EVERY_GATE,
    beta_range: tuple[float, float] = EVERY_BETA,
    length_multiple: int = 1,
    longest: int | None = None,
    device: str = "cpu",
    isolate: bool | None = None,
    deterministic: bool = True,
    gradients: bool | None = None,
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
        name: shown in every record; by default the function's own name, or the class of an object
            that is called.
        contract: name, .toml file (looked up beside the function's own first) or Contract, for all
            dtypes or per dtype; of other operators a name. Undeclared it is recurrent-fp64 for fp64
            and recurrent-fp32, the strictest contract, for all others: with 16-bit inputs o alone
            is rounded then; also with gates="head" and "none". Other operators have defaults of
            their own.
        backward: likewise, what the backward computes with where that is another pipeline than the
            forward, as where chunks have a recurrence, or autograd in fp32, for their backward.
        layout: bthd, bhtd or thd; of attention, batched or packed (see its options).
        state: kv or vk.
        gate: log, log2, decay, or softplus or bounded: the kernel gets x in place of g and
            activates it. A_log [HV] and dt_bias [HV, K] ([HV] with gates="head") are passed where
            the signature names them, and 0 where it does not.
        gates: channel (g [B, T, HV, K]: KDA), head (g [B, T, HV]: Gated DeltaNet) or none (no g:
            DeltaNet).
        heads: interleaved (value head j reads key head j // (HV / H)) or tiled (j mod H).
        beta: value or logit.
        packing: cu_seqlens, segment_ids or none. By default what the signature names of the two,
            else none: a kernel that names offsets is tested on packs.
        dtypes: of q, k, v, beta and o, of fp32, bf16, fp16, of the delta rule fp64 too; there gates
            and states come in fp32 (fp64 beside fp64).
        scale: argument (passed), fixed (the kernel always takes K^-1/2), folded (q comes
            multiplied). By default argument if the signature names scale, else fixed.
        padding: what rows of o past the last offset of a pack hold: zero, or undefined (not
            compared). By default zero where packing is declared, else undefined, as nothing was
            promised. With segment_ids a kernel cannot distinguish padding, so it is always
            undefined there.
        final_state: False if the function returns o alone.
        widths: all values of K and V that it takes; () any. Of other operators W, V, d_v or D.
        head_ratios: all values of HV / H that it takes; () any.
        square: True if it takes K = V alone.
        gate_format: of the x of a gate that the kernel activates: fp32, or inputs for that of q.
        lower_bound: of gate="bounded", g = lower_bound sigmoid(exp(A_log) (x + dt_bias)); passed
            where the signature names it.
        qk: given, or l2norm: the kernel normalises the rows of q and k itself, and gets rows of
            other lengths; l2norm-stored: likewise, and stores them in their format before it goes
            on. Not of fp64.
        norm_eps: of qk="l2norm", x / sqrt(|x|^2 + norm_eps).
        gate_range, beta_range: (lowest, highest) log decay, and write strength, that it takes. The
            decay is the natural log, whatever `gate` is.
        length_multiple: of which every length is a multiple.
        longest: tokens of a sequence at most.
        device: type of the torch device that it runs on: tensors are moved there and back.
        isolate: True runs it in a worker process, False in this one; by default in a worker process
            where `device` is not the CPU. The command line has the last word.
        deterministic: False if the same call may give other bits, as sums by atomic additions do.
        gradients: False if outputs have a graph that is not to be tested; outputs without one need
            no declaration. True is needed where few kernels of an operator have a backward:
            sparse_attention.
        step: the decode entry point, a plain function in the same conventions for T = 1, never
            called on packs; by default this one.
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
        op: the operator that it implements: kda, short_conv, gated_rms_norm, layer, attention,
            mla_decode, sparse_attention or merge_state. Functions of others than kda take other
            arguments.
        own: options of that operator by name, such as lse="2". `missing`, of all of them, returns
            why the kernel cannot run on this machine, or None.
    Returns:
        A decorator, or the adapter where the function is given. It can be called like the function,
        which is its `__wrapped__`.
    Raises:
        AdapterError: an option has no such value, or the signature does not fit.
    """
    given = dict(locals())
    words = {option: given[option] for option in Declaration.model_fields if option in given}
    words["gradients"] = gradients is not False
    adapt = _framework(framework).adapt
    if op != DEFAULT or own:
        return _of_operator(op, function, _framework(framework), {**own, **_given(given)})
    brought = OwnCalls(
        step and adapt(step),
        supports or (lambda _: None),
        proof,
        environment or dict,
        activations or {},
        stages or {},
    )

    def decorate(decorated: Function) -> KernelAdapter:
        found = adapted(_declaration(decorated, words), adapt(decorated), brought)
        functools.update_wrapper(found, decorated, updated=())
        return found

    return decorate if function is None else decorate(function)


def _declaration(decorated: Function, words: Mapping[str, Any]) -> Declaration:
    """What is declared of a function, and what its signature says of the rest."""
    title = words["name"] or getattr(decorated, "__name__", type(decorated).__name__)
    gates, gate, packing = words["gates"], words["gate"], words["packing"]
    keywords = entry_point(title, decorated, tokens_of(gates), gate=gate).keywords
    read = {
        "scale": words["scale"] or ("argument" if "scale" in keywords else "fixed"),
        "initial_state": "initial_state" in keywords,
        "packing": packing or packing_of(keywords),
        "padding": words["padding"] or ("undefined" if packing is None else "zero"),
        "gate_parameters": parameters_of(keywords),
    }
    return declaration_of(title, {**words, **read})


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
    if instead := advice(name):
        meant = f"{instead}."
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
        given[option] = (value,) if isinstance(value, str | int | torch.dtype) else tuple(value)
    if any(isinstance(dtype, torch.dtype) for dtype in given["dtypes"]):
        raise AdapterError(
            f"kernel {title!r}: dtypes: wanted names such as 'bf16' (fp64, fp32, bf16, fp16), got"
            f" {', '.join(map(str, given['dtypes']))}"
        )
    try:
        return Declaration(**given)
    except ValidationError as error:
        raise AdapterError(f"kernel {title!r}: {explain(error)}") from None
