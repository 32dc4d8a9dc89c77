"""Gated delta rules that are one function: mlx, executorch, bitsandbytes (CPU), opengdn."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.kernel_adapter import KernelAdapter, OwnCalls, adapted

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PortPackage:
    """Args: modules: that must be there; distributions: whose versions are recorded; install: how
    they come.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    install: str


MLX: Final = PortPackage(("mlx", "mlx_lm"), ("mlx", "mlx-lm"), "'kdaverify[mlx]'")
# Its requirements are a machine-learning workbench of a gigabyte; the operator needs these alone.
EXECUTORCH: Final = PortPackage(
    ("executorch", "ruamel"), ("executorch",), "--no-deps executorch ruamel.yaml tabulate"
)
BITSANDBYTES: Final = PortPackage(
    ("bitsandbytes",), ("bitsandbytes-cpu-fork",), "'kdaverify[bitsandbytes]'"
)
OPEN_GDN: Final = PortPackage(("opengdn",), ("opengdn",), "'kdaverify[opengdn]'")


def _mlx(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, initial_state: Tensor | None
) -> Pair:
    """The operations that a CPU runs; the Metal kernels of the package do not run here."""
    mx: Any = importlib.import_module("mlx.core")
    given = [
        None if x is None else mx.array(x.detach().contiguous().numpy())
        for x in (q, k, v, g, beta, initial_state)
    ]
    found = importlib.import_module("mlx_lm.models.gated_delta").gated_delta_ops(*given)
    o, state = (torch.from_dlpack(mx.contiguous(x)).clone() for x in found)
    return o, state


def _executorch(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, initial_state: Tensor | None
) -> Pair:
    """llama::gated_delta_rule, which edits no argument and takes a state always."""
    importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
    B, _, _, K = q.shape
    state = v.new_zeros(B, v.shape[1], K, v.shape[3]) if initial_state is None else initial_state
    rows = (x.contiguous() for x in (q, k, v, g, beta, state))
    return torch.ops.llama.gated_delta_rule(*rows)


def _bitsandbytes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor | None,
) -> Pair:
    function = importlib.import_module("bitsandbytes.gdn_cpu").fused_recurrent_gated_delta_rule
    return function(q, k, v, beta, g, scale, initial_state, output_final_state=True)


def _opengdn(place: str) -> Callable[..., Pair]:
    module, _, name = place.partition(":")

    def opengdn(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, initial_state: Tensor | None
    ) -> Pair:
        return getattr(importlib.import_module(module), name)(q, k, v, g, beta, initial_state)

    opengdn.__qualname__ = name
    return opengdn


def _port(
    name: str, package: PortPackage, function: Callable[..., Any], gates: str = "head", **words: Any
) -> KernelAdapter:
    fields: dict[str, Any] = {
        "name": name,
        "gates": gates,
        "gate": "decay",
        "scale": "folded",
        "contract": "recurrent-fp32",
        **words,
    }
    own = OwnCalls(
        missing=lambda: absent(package.modules, f"pip install {package.install}"),
        environment=lambda: versions(*package.distributions),
    )
    return adapted(Declaration(**fields), function, own)


MLX_GDN: Final = _port("mlx-gdn", MLX, _mlx, state="vk", gradients=False)
MLX_KDA: Final = _port("mlx-kda", MLX, _mlx, "channel", state="vk", gradients=False)
# Chunks of 32 in fp32, by its own tests: extension/llm/custom_ops/test_gated_delta.py of
# pytorch/executorch names "CHUNK_SIZE (32 in the C++ kernel)" and a prefill that forms exp(-cumsum
# of the log decay) within a chunk, tested at 1e-3 against the recurrence; decays too deep for that
# take the recurrence. Its sums are plain loops that begin with the state: for keys too small to
# couple its tokens, and no decay, its state has the bits of such a loop (T 32 to 160, K 33).
EXECUTORCH_GDN: Final = _port(
    "executorch-gdn",
    EXECUTORCH,
    _executorch,
    layout="bhtd",
    gradients=False,
    head_ratios=(1,),
    contract="chunk32-fp32-fp32factors[order:in-order]",
)
EXECUTORCH_KDA: Final = _port(
    "executorch-kda",
    EXECUTORCH,
    _executorch,
    "channel",
    layout="bhtd",
    gradients=False,
    head_ratios=(1,),
    contract="chunk32-fp32-fp32factors[order:in-order]",
)
BITSANDBYTES_GDN: Final = _port(
    "bitsandbytes-gdn", BITSANDBYTES, _bitsandbytes, gate="log", scale="argument", head_ratios=(1,)
)
OPENGDN: Final = _port(
    "opengdn", OPEN_GDN, _opengdn("opengdn.reference:gated_delta"), state="vk", head_ratios=(1,)
)
OPENGDN_CHUNK: Final = _port(
    "opengdn-chunk",
    OPEN_GDN,
    _opengdn("opengdn.chunkwise:gated_delta_chunkwise"),
    state="vk",
    head_ratios=(1,),
    contract="chunk64-fp32",
)
