"""Kernels that activate their gates, or normalise q and k, themselves: right ones, and ones that
are wrong in one place.

`tests.adapters.fused_kernels:KERNELS.NAME` names one on a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import KernelAdapter
from kdaverify.faults.conforming import conforming
from kdaverify.faults.conforming_call import Activate, activated, normalised
from oracles.row_norm import EPSILON

CHUNK: Final = 64
ANY: Final[dict[str, Any]] = {"packing": "cu_seqlens"}
Make = Callable[[], KernelAdapter]


def by_logarithm(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    """Softplus as Triton kernels have it: log(1 + exp z), and z from 20 on."""
    assert gate == "softplus"
    z = x + dt_bias
    near = torch.log(1 + torch.exp(z.clamp(max=20.0)))
    return -A_log.exp()[:, None] * torch.where(z > 20.0, z, near)


def by_torch(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    """torch's own softplus."""
    assert gate == "softplus"
    return -A_log.exp()[:, None] * torch.nn.functional.softplus(x + dt_bias)


def by_root(x: Tensor) -> Tensor:
    """A quotient in place of a product."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + EPSILON)


def by_large_epsilon(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-5)


def _kernel(form: str, **conventions: Any) -> Make:
    return lambda: conforming(form, **{**ANY, **conventions})


def wrapped(adapter: KernelAdapter) -> Any:
    """The function that it was made of."""
    return vars(adapter)["__wrapped__"]


def _with_step(activate: Activate) -> Make:
    """A kernel whose decode step activates otherwise."""

    def make() -> KernelAdapter:
        step = conforming(gate="softplus", activate=activate, **ANY)
        return conforming(gate="softplus", declared={"step": wrapped(step)}, **ANY)

    return make


RIGHT: Final[Mapping[str, Make]] = {
    "token": _kernel("token", gate="softplus"),
    "chunk": _kernel("chunk", gate="softplus"),
    "token_bf16": _kernel("token", gate="softplus", dtype="bf16"),
    "chunk_bf16": _kernel("chunk", gate="softplus", dtype="bf16"),
    "logarithm": _kernel("token", gate="softplus", activate=by_logarithm),
    "logarithm_chunk": _kernel("chunk", gate="softplus", activate=by_logarithm, dtype="bf16"),
    "torch": _kernel("chunk", gate="softplus", activate=by_torch),
    "bounded": _kernel("token", gate="bounded"),
    "bounded_chunk": _kernel("chunk", gate="bounded", dtype="bf16"),
    "head": _kernel("token", gate="softplus", gates="head", dtype="bf16"),
    "head_chunk": _kernel("chunk", gate="softplus", gates="head"),
    "foreign": _kernel(
        "token", gate="softplus", layout="bhtd", state="vk", heads="tiled", beta="logit"
    ),
    "double": _kernel("token", gate="softplus", dtype="fp64"),
    "bounded_double": _kernel("token", gate="bounded", dtype="fp64"),
    "narrow": _kernel("token", gate="softplus", dtype="bf16", declared={"gate_format": "inputs"}),
    "narrow_chunk": _kernel(
        "chunk", gate="softplus", dtype="fp16", declared={"gate_format": "inputs"}
    ),
    "narrow_bounded": _kernel(
        "chunk", gate="bounded", dtype="bf16", declared={"gate_format": "inputs"}
    ),
    "rows": _kernel("token", qk="l2norm"),
    "rows_chunk": _kernel("chunk", qk="l2norm"),
    "rows_bf16": _kernel("token", qk="l2norm", dtype="bf16"),
    "rows_chunk_fp16": _kernel("chunk", qk="l2norm", dtype="fp16"),
    "rows_stored": _kernel("token", qk="l2norm-stored", dtype="bf16"),
    "rows_stored_chunk": _kernel(
        "chunk", qk="l2norm-stored", dtype="bf16", declared={"contract": "chunk64-bf16"}
    ),
    "rows_by_root": _kernel("token", qk="l2norm", normalise=by_root, layout="bhtd"),
    "rows_eps": _kernel(
        "token", qk="l2norm", normalise=by_large_epsilon, declared={"norm_eps": 1e-5}
    ),
    "whole": _kernel("chunk", qk="l2norm", gate="softplus", beta="logit", dtype="bf16"),
    "whole_head": _kernel(
        "token", qk="l2norm", gate="softplus", beta="logit", gates="head", heads="tiled"
    ),
}


def _without_slope(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    g = activated(x, A_log, dt_bias, gate)
    return x + (g - x).detach()


def _second_chunk(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    first, rest = x[:, :CHUNK], x[:, CHUNK:]
    return torch.cat((activated(first, A_log, dt_bias, gate), -rest.abs()), 1)


def _linear_from_1(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    z = x + dt_bias
    return torch.where(z > 1, -A_log.exp()[:, None] * z, activated(x, A_log, dt_bias, gate))


def _without_threshold(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    del gate
    return -A_log.exp()[:, None] * torch.log(1 + torch.exp(x + dt_bias))


def _in_bf16(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    return activated(x.bfloat16(), A_log.bfloat16(), dt_bias.bfloat16(), gate).to(x.dtype)


def _edits(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    g = activated(x, A_log, dt_bias, gate)
    A_log.exp_()
    return g


def _narrowed(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    return activated(x.bfloat16().to(x.dtype), A_log, dt_bias, gate)


def _double_slope_at_0(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    del gate
    z = x + dt_bias
    return -A_log.exp()[:, None] * (z.clamp(min=0.0) + torch.log1p(torch.exp(-z.abs())))


def _raw(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    del A_log, dt_bias, gate
    return -x.abs()


def _bias_last(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    del gate
    return -5 * torch.sigmoid(A_log.exp()[:, None] * x + dt_bias)


_WRONG: Final[Mapping[str, Activate]] = {
    "no_bias": lambda x, A, b, gate: activated(x, A, 0 * b, gate),
    "no_amplitude": lambda x, A, b, gate: activated(x, 0 * A, b, gate),
    "amplitude_of_next_head": lambda x, A, b, gate: activated(x, A.roll(1, 0), b, gate),
    "bias_of_next_channel": lambda x, A, b, gate: activated(x, A, b.roll(1, -1), gate),
    "amplitude_twice": lambda x, A, b, gate: activated(x, 2 * A, b, gate),
    "log_amplitude": lambda x, A, b, gate: activated(x, A.abs().log(), b, gate),
    "linear_from_1": _linear_from_1,
    "second_chunk_raw": _second_chunk,
    "in_bf16": _in_bf16,
    "no_slope": _without_slope,
    "edits_a_parameter": _edits,
    "x_in_bf16": _narrowed,
}


def _without_epsilon(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def _epsilon_outside(x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + EPSILON)


def _sums_in_bf16(x: Tensor) -> Tensor:
    squares = x.square().bfloat16().sum(-1, keepdim=True).to(x.dtype)
    return x * (squares + EPSILON).rsqrt()


def _without_projection(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt().detach()


def _largest(x: Tensor) -> Tensor:
    return x / (x.abs().amax(-1, keepdim=True) + EPSILON)


def _untouched(x: Tensor) -> Tensor:
    return x


def _mean(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()


class _KeysAlone:
    """Normalises every second tensor that it gets: k, behind q."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self._calls += 1
        return x if self._calls % 2 else normalised(x)


_WRONG_ROWS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "no_epsilon": _without_epsilon,
    "epsilon_outside": _epsilon_outside,
    "sums_in_bf16": _sums_in_bf16,
    "no_projection": _without_projection,
    "largest_element": _largest,
    "rms_in_place": _mean,
    "no_norm": _untouched,
    "keys_alone": _KeysAlone(),
}
WRONG: Final[Mapping[str, Make]] = {
    **{name: _kernel("token", qk="l2norm", normalise=wrong) for name, wrong in _WRONG_ROWS.items()},
    "norm_stored_undeclared": _kernel(
        "token", qk="l2norm-stored", dtype="bf16", declared={"qk": "l2norm"}
    ),
    "default_epsilon": _kernel("token", qk="l2norm", declared={"norm_eps": 1e-5}),
    **{name: _kernel("token", gate="softplus", activate=wrong) for name, wrong in _WRONG.items()},
    "no_threshold": _kernel("chunk", gate="softplus", activate=_without_threshold),
    "raw_step": _with_step(_raw),
    "step_without_bias": _with_step(_WRONG["no_bias"]),
    "default_bound": _kernel("token", gate="bounded", declared={"lower_bound": -3.0}),
    "bias_behind_amplitude": _kernel("token", gate="bounded", activate=_bias_last),
}


SLOPE_AT_0: Final = _kernel(
    "token",
    gate="softplus",
    dtype="bf16",
    activate=_double_slope_at_0,
    declared={"gate_format": "inputs"},
)
"""Wrong where x + dt_bias is exactly 0 alone, which x of 16 bits meets."""


class Kernels:
    """All of them, by name."""

    def __getattr__(self, name: str) -> KernelAdapter:
        made = {**RIGHT, **WRONG, "slope_at_0": SLOPE_AT_0}
        if name not in made:
            raise AttributeError(name)
        return made[name]()


KERNELS: Final = Kernels()
