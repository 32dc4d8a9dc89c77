"""Kernels that conform by construction: whatever rejects one of them is a false alarm."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager, arithmetic_of, run_eager
from kdaverify.budgets.formats import format_of
from kdaverify.faults import gated_norm, layer, layer_cache, short_conv
from kdaverify.faults.adapter import EMBEDDED as EMBEDDED_KERNELS
from kdaverify.faults.attention.adapter import in_base_two
from kdaverify.faults.conforming import conforming
from kdaverify.problems import DTYPES
from oracles.inputs import Inputs

EMBEDDED: Final = (
    "eager",
    "eager-recurrent",
    "kdaverify.faults.conforming_kernels:backwards_eager",
)
OTHERWISE: Final = tuple(
    f"kdaverify.faults.conforming:MATRIX.{row}"
    for row in (
        "chunk__bhtd__vk__log2__value__none__folded__zero__bf16",
        "token__thd__kv__decay__logit__cu_seqlens__fixed__undefined__fp32",
        "chunk__bthd__vk__log__logit__segment_ids__argument__zero__fp16",
    )
)
"""In conventions that the embedded ones have not: every value of every convention occurs, in each
format one."""
CONFORMING: Final = (*EMBEDDED, *OTHERWISE)
"""The conforming kernels that faults are held against, as `--impl` names them."""
_OWN: Final = "kdaverify.faults.conforming_kernels:"
GDN: Final = tuple(
    f"{_OWN}{name}" for name in ("gdn_eager", "gdn_backwards", "gdn_token", "gdn_chunk_tiled")
)
DELTA: Final = tuple(f"{_OWN}{name}" for name in ("delta_eager", "delta_token"))
CONV: Final = tuple(
    f"{_OWN}{name}"
    for name in (
        "conv_in_order",
        "conv_backwards",
        "conv_w_minus_1",
        "conv_tanh",
        "conv_one_by_one",
    )
)
NORM: Final = tuple(
    f"{_OWN}{name}"
    for name in ("norm_in_order", "norm_by_division", "norm_stored", "norm_tanh", "norm_partials")
)
LAYER: Final = tuple(
    f"{_OWN}{name}" for name in ("layer_token_by_token", "layer_by_products", "layer_with_a_cache")
)
ATTENTION: Final = ("eager-attention", f"{_OWN}attention_in_base_two")
MLA_DECODE: Final = ("eager-mla-decode", f"{_OWN}mla_decode_in_base_two")
SPARSE: Final = ("eager-sparse-attention",)
SPARSE_FP8: Final = ("eager-sparse-fp8",)
MERGE_STATE: Final = ("eager-merge",)
"""The same for the other operators."""


def backwards(a: Tensor, b: Tensor) -> Tensor:
    """A dot product summed in 16 partial sums, last first."""
    parts = min(a.shape[-1], 16)
    total = torch.zeros((), dtype=a.dtype)
    for left, right in reversed(
        list(zip(a.tensor_split(parts, dim=-1), b.tensor_split(parts, dim=-2), strict=True))
    ):
        total = total + left @ right
    return total


class Backwards(Eager):
    """The embedded kernel with every sum taken last part first."""

    def forward(self, inputs: Inputs) -> Output:
        contract = self.contract(format_of(inputs.q.dtype).name)
        o, final_state = run_eager(
            contract, inputs, arithmetic=replace(arithmetic_of(contract), dot=backwards)
        )
        self._ran = f"oracles in torch as {contract.name}, sums taken backwards"
        return Output(o, final_state)


backwards_eager: Final = Backwards("eager-backwards", dict.fromkeys(DTYPES, "eager"))
gdn_eager, delta_eager = EMBEDDED_KERNELS["gdn"], EMBEDDED_KERNELS["delta"]
gdn_backwards: Final = Backwards("gdn-backwards", dict.fromkeys(DTYPES[1:], "gdn64"), "head")
gdn_token: Final = conforming("token", packing="cu_seqlens", gates="head")
gdn_chunk_tiled: Final = conforming(
    "chunk",
    layout="bhtd",
    state="vk",
    gate="decay",
    packing="cu_seqlens",
    gates="head",
    heads="tiled",
    dtype="bf16",
)
delta_token: Final = conforming("token", packing="cu_seqlens", gates="none")
conv_in_order = short_conv.adapted(short_conv.RIGHT, "in order")
conv_backwards = short_conv.adapted(
    short_conv.RIGHT.replaced(take=short_conv.summed_backwards), "backwards"
)
conv_tanh = short_conv.adapted(
    short_conv.RIGHT.replaced(act=short_conv.by_tanh), "by tanh", contract="short-conv+tanh"
)
conv_one_by_one = short_conv.adapted(
    short_conv.OneByOne(**vars(short_conv.RIGHT)), "one by one", contract="short-conv+sequences"
)
conv_w_minus_1 = short_conv.w_minus_one
norm_in_order = gated_norm.adapted(gated_norm.right, "in order")
norm_by_division = gated_norm.adapted(gated_norm.by_division, "by division")
norm_stored = gated_norm.three_roundings
norm_tanh = gated_norm.adapted(gated_norm.by_tanh, "by tanh", contract="gated-rms-norm+tanh")
norm_partials = gated_norm.in_partial_sums
layer_token_by_token = layer.adapted(layer.token_by_token, "layer token by token")
layer_with_a_cache = layer_cache.adapted(layer_cache.RIGHT, "layer with a cache")
layer_by_products = layer.adapted(layer.by_products, "layer by products")
attention_in_base_two, mla_decode_in_base_two = map(in_base_two, ("attention", "mla_decode"))
