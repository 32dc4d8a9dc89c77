"""Hugging Face transformers: eager attention of DeepSeek-V3's and Kimi Linear's MLA layers."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import by_heads, contracts
from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.operator_kernel import shipped

DEEPSEEK: Final = "transformers.models.deepseek_v3.modeling_deepseek_v3"


def _eager(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
    """With the additive mask that the model makes: the smallest number of the format."""
    layer = SimpleNamespace(num_key_value_groups=q.shape[2] // k.shape[2], training=False)
    attend = importlib.import_module(DEEPSEEK).eager_attention_forward
    mask = _border(q, k.shape[1]) if causal else None
    return attend(layer, *by_heads(q, k, v), mask, scaling=softmax_scale)[0]


def _border(q: Tensor, s_k: int) -> Tensor:
    s_q = q.shape[1]
    hidden = torch.ones(s_q, s_k, dtype=torch.bool).triu(s_k - s_q + 1)
    return torch.zeros(s_q, s_k, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)


_adapter = functools.partial(
    shipped,
    "attention",
    _eager,
    lse="none",
    empty_out="unspecified",
    environment=lambda: versions("transformers"),
    missing=lambda: absent(("transformers",), "pip install 'kdaverify[transformers]'"),
)
EAGER: Final = _adapter("transformers-eager-attention", dtypes=("fp32",), contract="math-fp32")
HALF: Final = ("bf16", "fp16")
EAGER_HALF: Final = _adapter(
    "transformers-eager-attention-half",
    dtypes=HALF,
    contract=contracts("math-{0}[product:{0};S:{0}]", HALF),
    largest_product=torch.finfo(torch.float16).max,
)
"""Products, scaled scores and normalised weights are stored in 16 bits. Products of q and k that
overflow fp16 before they are scaled give NaN: no model is known to have such.
"""
