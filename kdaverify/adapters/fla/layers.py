"""The layers of flash-linear-attention, whole: Kimi Delta Attention and Gated DeltaNet."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.fla.neighbours import last_run, mode, watched
from kdaverify.adapters.fla.runtime import missing
from kdaverify.adapters.layers import WIDTH, layer, module_in
from kdaverify.adapters.operator_kernel import FunctionAdapter

INSTALL: Final = "pip install 'kdaverify[fla-layers]'"
SMALL: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "num_heads": 2,
    "num_v_heads": 4,
    "head_dim": 16,
    "layer_idx": 0,
}
LONGEST: Final = 70
"""Tokens under the interpreter: past the 64 where these layers change from the recurrent to the
chunk form."""


def kda() -> nn.Module:
    return importlib.import_module("fla.layers.kda").KimiDeltaAttention(**SMALL)


def gdn() -> nn.Module:
    place = importlib.import_module("fla.layers.gated_deltanet")
    return place.GatedDeltaNet(**SMALL, expand_v=2)


def _layer_of(make: Callable[[], nn.Module]) -> Callable[..., Any]:
    def fla_layer(
        hidden: Tensor,
        *,
        cache: Any,
        attention_mask: Tensor | None,
        cu_seqlens: Tensor | None,
        use_cache: bool,
    ) -> tuple[Tensor, Any]:
        def call() -> tuple[Tensor, Any]:
            fresh = importlib.import_module("fla.models.utils").Cache
            kept = fresh() if use_cache and cache is None else cache
            module = module_in(make, hidden.dtype).to(hidden.device)
            out, _, after = module(
                hidden, attention_mask, kept, use_cache=use_cache, cu_seqlens=cu_seqlens
            )
            return out, after

        return watched(hidden.dtype, call)

    fla_layer.__qualname__ = f"fla.layers.{make.__name__}"
    return fla_layer


def _adapter(name: str, make: Callable[[], nn.Module]) -> FunctionAdapter:
    """Isolated, as its kernels can take their process with them."""
    native = torch.cuda.is_available()
    return layer(
        _layer_of(make),
        name,
        longest=4096 if native else LONGEST,
        device="cuda" if native else "cpu",
        isolate=True,
        proof=last_run,
        environment=lambda: {**versions("fla-core", "triton"), "mode": mode()},
        missing=lambda: absent(("fla.layers", "transformers"), INSTALL) or missing("cuda", INSTALL),
    )


FLA_KDA_LAYER: Final = _adapter("fla-kda-layer", kda)
FLA_GDN_LAYER: Final = _adapter("fla-gdn-layer", gdn)
