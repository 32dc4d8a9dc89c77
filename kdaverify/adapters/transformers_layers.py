"""Hugging Face transformers: the linear-attention layers of Kimi Linear and Qwen3-Next, whole."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator
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


def _config(module: str, name: str, **sizes: Any) -> Any:
    place = module.replace("modeling", "configuration")
    return getattr(importlib.import_module(place), name)(**SMALL, **sizes)


def qwen_config() -> Any:
    """Two value heads a key head."""
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    return _config(
        QWEN, "Qwen3NextConfig", linear_key_head_dim=16, linear_value_head_dim=32, **heads
    )


def kimi_config() -> Any:
    return _config(KIMI, "KimiLinearConfig", linear_num_heads=2, linear_head_dim=32)


def qwen() -> nn.Module:
    return importlib.import_module(QWEN).Qwen3NextGatedDeltaNet(qwen_config(), layer_idx=0)


def kimi() -> nn.Module:
    return importlib.import_module(KIMI).KimiLinearDeltaAttention(kimi_config(), layer_idx=0)


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


def _layer_of(
    place: str, make: Callable[[], nn.Module], config: Callable[[], Any]
) -> Callable[..., Any]:
    def transformers_layer(
        hidden: Tensor, *, cache: Any, attention_mask: Tensor | None, use_cache: bool
    ) -> tuple[Tensor, Any]:
        kept = importlib.import_module("transformers").DynamicCache(config=config())
        cache = kept if use_cache and cache is None else cache
        with _torch_functions(place):
            found = module_in(make, hidden.dtype)(
                hidden, cache_params=cache, attention_mask=attention_mask
            )
        return found, cache

    transformers_layer.__qualname__ = f"{place}.{make.__name__}"
    return transformers_layer


def _reset(cache: Any) -> None:
    cache.reset()


def _reorder(cache: Any, order: Tensor) -> None:
    cache.reorder_cache(order)


def _adapter(
    name: str, place: str, make: Callable[[], nn.Module], config: Callable[[], Any]
) -> FunctionAdapter:
    return layer(
        _layer_of(place, make, config),
        name,
        dtypes=("fp32", "bf16"),
        reference="fp64",
        reset=_reset,
        reorder=_reorder,
        environment=lambda: versions("transformers"),
        missing=lambda: absent(("transformers",), "pip install 'kdaverify[transformers]'"),
    )


KIMI_LAYER: Final = _adapter("transformers-kimi-layer", KIMI, kimi, kimi_config)
QWEN_LAYER: Final = _adapter("transformers-qwen3-next-layer", QWEN, qwen, qwen_config)
