"""Hugging Face transformers: the linear-attention layers of Kimi Linear and Qwen3-Next, whole."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor, nn

from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.layers import WIDTH, layer, module_in
from kdaverify.adapters.operator_kernel import FunctionAdapter
from kdaverify.adapters.transformers_kda import torch_function
from kdaverify.adapters.transformers_neighbours import KIMI, QWEN

SMALL: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
}


@contextmanager
def _torch_functions(place: str) -> Generator[None]:
    """The functions of the model file that its decorators may hand over to another package."""
    module = importlib.import_module(place)
    before = {name: value for name, value in vars(module).items() if _is_decorated(value, place)}
    vars(module).update({name: torch_function(place, name) for name in before})
    try:
        yield
    finally:
        vars(module).update(before)


def _is_decorated(value: Any, place: str) -> bool:
    plain = inspect.isfunction(value) and inspect.unwrap(value)
    return bool(plain) and plain is not value and plain.__module__ == place


def _adapter(
    name: str, place: str, attention: str, configured: str, **sizes: Any
) -> FunctionAdapter:
    """The adapter of a class of a model file; see `layer`.

    Args:
        attention, configured: the names of the class, and of that of its configuration.
    """

    def config() -> Any:
        module = importlib.import_module(place.replace("modeling", "configuration"))
        return getattr(module, configured)(**SMALL, **sizes)

    def make() -> nn.Module:
        return getattr(importlib.import_module(place), attention)(config(), layer_idx=0)

    def transformers_layer(
        hidden: Tensor, *, cache: Any, attention_mask: Tensor | None, use_cache: bool
    ) -> tuple[Tensor, Any]:
        if use_cache and cache is None:
            cache = importlib.import_module("transformers").DynamicCache(config=config())
        with _torch_functions(place):
            module = module_in(make, hidden.dtype)
            return module(hidden, cache_params=cache, attention_mask=attention_mask), cache

    transformers_layer.__qualname__ = f"{place}.{attention}"
    return layer(
        transformers_layer,
        name,
        environment=lambda: versions("transformers"),
        missing=lambda: absent(("transformers",), "pip install 'kdaverify[transformers]'"),
    )


KIMI_LAYER: Final = _adapter(
    "transformers-kimi-layer",
    KIMI,
    "KimiLinearDeltaAttention",
    "KimiLinearConfig",
    linear_num_heads=2,
    linear_head_dim=32,
)
QWEN_LAYER: Final = _adapter(
    "transformers-qwen3-next-layer",
    QWEN,
    "Qwen3NextGatedDeltaNet",
    "Qwen3NextConfig",
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=32,
)
"""Two value heads a key head."""
