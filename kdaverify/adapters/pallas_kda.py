"""deltanet-tpu: Pallas TPU kernels, interpreted where there is no TPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.base import (
    Output,
    WatchedAdapter,
    WrongKernelError,
    absent,
    all_behind,
    versions,
)
from kdaverify.adapters.conventions import OUTSIDE, Conventions
from kdaverify.adapters.handover import clear_padding, fold_scale
from kdaverify.adapters.jax_arrays import from_jax, through_jax, to_jax
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import TORCH, Domain, Problem
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, TOKENS

WIDTH: Final = 128
CHUNK: Final = preset("pallas", "fp32").chunk_size
BATCH, HEADS, COMPILED = 2, 4, 128
STEP: Final = "kda_decode_step (XLA)"
# Its metadata requests Python 3.12; it runs on 3.11.
INSTALL: Final = (
    "pip install 'kdaverify[pallas]', then pip install --no-deps --ignore-requires-python"
    " deltanet-tpu==0.3.0"
)


@dataclass(frozen=True)
class _Shape:
    """What a compiled call is specialised for."""

    B: int
    T: int
    H: int
    HV: int
    dtype: torch.dtype
    scale: float
    stateful: bool
    packed: bool


class Pallas(WatchedAdapter):
    """chunk_kda with chunks of 128 and the precision of the problem; decoding is kda_decode_step,
    plain XLA.

    Every new shape and scale costs over a second of tracing, so calls are brought to a few: tokens,
    heads and batch entries are rounded up with inert ones (all zero), widths below 128 with zero
    channels, and there q comes multiplied by the scale, rounded as the package itself rounds that
    product. A pack has one final state per row, so it exposes o alone, and what its padding tokens
    return means nothing. Its backward is the package's own, Pallas kernels too, reached through
    jax.vjp.
    Source: deltanet_tpu.chunk_kda.
    """

    name = "pallas"
    dtypes = ("fp32", "bf16")
    conventions = Conventions(packing="segment_ids")
    domain = Domain(widest=WIDTH, packed_states=False)  # segments start from zero
    barriers = all_behind("torch tensors are copied to JAX arrays and back")

    def missing(self) -> str | None:
        return absent(("jax", "deltanet_tpu", "ml_dtypes"), INSTALL)

    def contract(self, dtype: str) -> Contract:
        return preset("pallas", dtype)

    def supports(self, problem: Problem) -> str | None:
        if problem.T == 0:
            return "at least one token: the kernel refuses T = 0"
        return super().supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        return OUTPUTS[:1] if problem.packed else OUTPUTS

    def forward(self, inputs: Inputs) -> Output:
        call = inputs if inputs.K == WIDTH else fold_scale(inputs)
        shape = _bucket(call)
        x = self.conventions.arguments(call)
        tensors = [_padded(x[name], shape, name) for name in TOKENS]
        if shape.stateful:
            tensors.append(_padded_state(x["initial_state"], shape))
        ids = (
            to_jax(pad(x["segment_ids"], (0, shape.T - inputs.T, 0, shape.B - 1), value=OUTSIDE))
            if shape.packed
            else None
        )

        def there(*arrays: Any) -> Any:
            compiled, self._ran = _compiled(shape)
            return compiled(arrays, ids)

        def back(arrays: Any, cotangents: Any) -> Any:
            compiled, self._ran = _differentiated(shape)
            return compiled(arrays, ids, cotangents)

        o, final_state = through_jax(there, back, *tensors)
        return _cut(clear_padding(o, inputs), None if shape.packed else final_state, inputs)

    def step(self, inputs: Inputs) -> Output:
        x = self.conventions.arguments(inputs)
        tokens = [to_jax(_wide(x[name])[:, 0]) for name in ("q", "k", "v", "g")]
        o, final_state = _decode()(
            *tokens,
            to_jax(x["beta"][:, 0]),
            to_jax(_wide(_wide(inputs.state).mT).mT),
            scale=inputs.factor,
        )
        self._ran = STEP
        return _cut(from_jax(o)[:, None], from_jax(final_state), inputs)

    def environment(self) -> dict[str, str]:
        import jax

        device = jax.default_backend()
        mode = "native" if device == "tpu" else "interpreted"
        return {
            **super().environment(),
            **versions("deltanet-tpu", "jax", "jaxlib"),
            "device": device,
            "mode": mode,
        }


def _bucket(inputs: Inputs) -> _Shape:
    H = max(HEADS, _power_of_two(inputs.H))
    return _Shape(
        B=max(BATCH, _power_of_two(inputs.B)),
        T=CHUNK * _power_of_two(-(-inputs.T // CHUNK)),
        H=H,
        HV=H * (inputs.HV // inputs.H),
        dtype=inputs.q.dtype,
        scale=inputs.factor,
        stateful=inputs.initial_state is not None,
        packed=inputs.cu_seqlens is not None,
    )


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _wide(x: Tensor) -> Tensor:
    """Zero channels up to the kernel's width."""
    return pad(x, (0, WIDTH - x.shape[-1]))


def _padded(x: Tensor, shape: _Shape, name: str) -> Tensor:
    heads = shape.H if name in ("q", "k") else shape.HV
    x = x if name == "beta" else _wide(x)
    widths = [0, 0] * (x.ndim - 3)
    return pad(
        x, (*widths, 0, heads - x.shape[2], 0, shape.T - x.shape[1], 0, shape.B - x.shape[0])
    )


def _padded_state(state: Tensor, shape: _Shape) -> Tensor:
    N, HV, K, V = state.shape
    return pad(state, (0, WIDTH - V, 0, WIDTH - K, 0, shape.HV - HV, 0, shape.B - N))


def _cut(o: Tensor, final_state: Tensor | None, inputs: Inputs) -> Output:
    """The real rows, heads and channels of padded outputs, in memory of their own."""
    B, T, HV, V = inputs.v.shape
    state = None if final_state is None else final_state[:B, :HV, : inputs.K, :V].contiguous()
    return Output(o[:B, :T, :HV, :V].contiguous(), state)


@functools.lru_cache(maxsize=COMPILED)
def _compiled(shape: _Shape) -> tuple[Callable[..., Any], str]:
    """The compiled call (arrays, ids) -> (o, S_T), and its Pallas kernels' names."""
    arrays, ids = _arguments(shape)
    return _traced(_function(shape), arrays, ids)


@functools.lru_cache(maxsize=COMPILED)
def _differentiated(shape: _Shape) -> tuple[Callable[..., Any], str]:
    """Its VJP (arrays, ids, cotangents) -> cotangents of arrays; it runs the forward again."""
    import jax

    function, (arrays, ids) = _function(shape), _arguments(shape)

    def vjp(arrays: Any, ids: Any, cotangents: Any) -> Any:
        return jax.vjp(lambda *given: function(given, ids), *arrays)[1](cotangents)

    with _quiet():
        outputs = jax.eval_shape(function, arrays, ids)
    return _traced(vjp, arrays, ids, outputs)


def _function(s: _Shape) -> Callable[[Any, Any], Any]:
    import deltanet_tpu

    options = {
        "output_final_state": True,
        "chunk_size": CHUNK,
        "precision": _dtype(s),
        "scale": s.scale,
    }

    def call(arrays: Any, ids: Any) -> Any:
        *tokens, state = arrays if s.stateful else (*arrays, None)
        return deltanet_tpu.chunk_kda(*tokens, initial_state=state, segment_ids=ids, **options)

    return call


def _arguments(s: _Shape) -> tuple[Any, Any]:
    """Shapes and types of the arrays and of the segment ids."""
    import jax
    import jax.numpy as jnp

    element = jnp.float32 if _dtype(s) == "fp32" else jnp.bfloat16
    array = jax.ShapeDtypeStruct
    q = array((s.B, s.T, s.H, WIDTH), element)
    v, beta = array((s.B, s.T, s.HV, WIDTH), element), array((s.B, s.T, s.HV), element)
    g = array((s.B, s.T, s.HV, WIDTH), jnp.float32)
    state = (array((s.B, s.HV, WIDTH, WIDTH), jnp.float32),) if s.stateful else ()
    return (q, q, v, g, beta, *state), array((s.B, s.T), jnp.int32) if s.packed else None


def _dtype(s: _Shape) -> str:
    return next(name for name in Pallas.dtypes if TORCH[name] == s.dtype)


def _traced(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], str]:
    import jax

    with _quiet():
        traced = jax.jit(function).trace(*arguments)
    names = [f"{name}, {mode}" for name, mode in _pallas_calls(traced.jaxpr)]
    if not names:
        raise WrongKernelError(
            "deltanet_tpu.chunk_kda traced to no pallas_call: it fell back to plain JAX"
        )
    return traced.lower().compile(), "Pallas " + " and ".join(names)


@functools.cache
def _decode() -> Callable[..., Any]:
    import deltanet_tpu
    import jax

    return jax.jit(deltanet_tpu.kda_decode_step, static_argnames=("scale",))


@contextmanager
def _quiet() -> Generator[None]:
    # The package warns at its first call that it is not on a TPU; environment() says so in every
    # record.
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="deltanet-tpu: running on non-TPU backend", category=UserWarning
        )
        yield


def _pallas_calls(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """(kernel name, mode) of every pallas_call inside a jaxpr, at any depth."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield (
                str(equation.params["name"]),
                "interpreted" if equation.params["interpret"] else "native",
            )
            continue
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else (value,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _pallas_calls(inner)


PALLAS: Final = Pallas()
