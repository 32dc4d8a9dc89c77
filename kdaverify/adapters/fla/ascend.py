"""Interpreted calls of flash-linear-attention's Ascend kernels of the gated delta rule.

Two verifiers of the backend want a tensor's device to be an NPU. Interpreted tensors are on the
CPU, so the calls would go to the kernels for CUDA, without a message.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import torch

MARK: Final = ".triton_ascend."
"""In the module of every Ascend kernel."""
OWN: Final = f"fla.ops.gated_delta_rule.backends{MARK}"
CHECKS_OF_THE_DEVICE: Final[Mapping[str, tuple[str, str]]] = {
    "fla.ops.gated_delta_rule.backends.triton_ascend": (
        "TritonAscendGDNBackend",
        "recompute_w_u_fwd_verifier",
    ),
    "fla.ops.common.backends.triton_ascend": (
        "TritonAscendCommonBackend",
        "chunk_scaled_dot_kkt_fwd_verifier",
    ),
}
"""By module: the class of the backend, and its method."""


@functools.cache
def accept_interpreted_tensors() -> None:
    """Gives these verifiers descriptions of tensors on an NPU, once per process."""
    for module, (name, method) in CHECKS_OF_THE_DEVICE.items():
        backend = getattr(importlib.import_module(module), name)
        setattr(backend, method, _of_described(getattr(backend, method)))


def _of_described(verifier: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verifier)
    def verified(backend: Any, *args: Any, **kwargs: Any) -> Any:
        described = {name: _described(value) for name, value in kwargs.items()}
        return verifier(backend, *map(_described, args), **described)

    return verified


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return SimpleNamespace(device=torch.device("npu"), dtype=value.dtype, shape=value.shape)
