"""Faults of readers of a cache in FP8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY
from kdaverify.faults.attention.list_kernel import Keys, ListPatch, Named, QueryList, as_keys
from kdaverify.faults.fault import Fault, Make
from oracles.attention.fp8 import LARGEST, TILE, Fp8Rows, as_bytes, dequantised, of_bytes

OTHER_LARGEST: Final = 224.0
"""Of the flavour of e4m3 whose exponent is one larger."""
NAN_AS: Final = 480.0
"""What the code of NaN would be if it were a number."""
EXPONENT: Final = 0x78
Call = Callable[..., Any]


def _spread(parts: Fp8Rows) -> Tensor:
    return parts.scales.double().repeat_interleave(TILE, -1)


def _e4m3(x: Tensor) -> Tensor:
    """Rounded to e4m3, saturating."""
    return x.clamp(-LARGEST, LARGEST).float().to(torch.float8_e4m3fn).double()


def _latent(parts: Fp8Rows, values: Tensor) -> Keys:
    """Other numbers for the quantised columns."""
    return torch.cat((values, parts.others.double()), -1), values


def _scaled_twice(parts: Fp8Rows) -> Keys:
    k, v = as_keys(parts)
    return k, v * _spread(parts)


def _values_unscaled(parts: Fp8Rows) -> Keys:
    return dequantised(parts), parts.values


def _written_unscaled(parts: Fp8Rows) -> Keys:
    """The writer had no scale, the reader multiplies by it."""
    return _latent(parts, _e4m3(parts.values * _spread(parts)) * _spread(parts))


def _scale_in_bf16(parts: Fp8Rows) -> Keys:
    return as_keys(replace(parts, scales=parts.scales.bfloat16().float()))


def _other_flavour(parts: Fp8Rows) -> Keys:
    clamped = parts.values.clamp(-OTHER_LARGEST, OTHER_LARGEST)
    return _latent(parts, clamped * _spread(parts))


def _others_quantised(parts: Fp8Rows) -> Keys:
    """With the scale of the first tile, saturating."""
    scale = parts.scales[..., :1].double()
    others = _e4m3(parts.others.double() / scale) * scale
    k, v = as_keys(parts)
    return torch.cat((k[..., : v.shape[-1]], others), -1), v


def _divided(parts: Fp8Rows) -> Keys:
    return _latent(parts, parts.values / _spread(parts))


def _neighbour(parts: Fp8Rows) -> Keys:
    return as_keys(replace(parts, scales=parts.scales.roll(1, -1)))


def _e5m2(parts: Fp8Rows) -> Keys:
    return _latent(parts, parts.codes.view(torch.float8_e5m2).double() * _spread(parts))


def _others_scaled(parts: Fp8Rows) -> Keys:
    k, v = as_keys(parts)
    others = parts.others.double() * parts.scales[..., -1:].double()
    return torch.cat((k[..., : v.shape[-1]], others), -1), v


def _unscaled(parts: Fp8Rows) -> Keys:
    return _latent(parts, parts.values)


def _nan_is_a_number(parts: Fp8Rows) -> Keys:
    """Scales of rows that were never written stay what they are."""
    sign = torch.where(parts.codes > 127, -1.0, 1.0).double()
    return _latent(
        parts, torch.where(parts.values.isnan(), sign * NAN_AS, parts.values) * _spread(parts)
    )


def _subnormal_as_zero(parts: Fp8Rows) -> Keys:
    subnormal = parts.codes & EXPONENT == 0
    return _latent(parts, parts.values.masked_fill(subnormal, 0.0) * _spread(parts))


def _bf16_strides(one: QueryList) -> Named:
    """Tokens are taken to be 1152 bytes apart instead of 656."""
    return one.entries.masked_fill(~one.seen, 0) * 1152 // 656 % one.slots, one.seen


def scales_of_the_first_call() -> ListPatch:
    """A kernel compiled with the scales of its first call of a shape."""
    kept = dict[tuple[int, ...], Tensor]()

    def call(right: Call, given: dict[str, Any]) -> Any:
        cache, d_v = given["cache"], given["d_v"]
        parts = of_bytes(cache, d_v)
        scales = kept.setdefault(tuple(cache.shape), parts.scales.nan_to_num(1.0))
        return right(**{**given, "cache": as_bytes(replace(parts, scales=scales))})

    return ListPatch(call=call)


def _reads(dequantise: Callable[[Fp8Rows], Keys]) -> Make:
    return lambda _: ListPatch(dequantise=dequantise)


_fault = partial(
    Fault,
    kind="C",
    dtypes=EVERY,
    stage="dequant",
    operator="sparse_fp8",
    outputs=("o", "lse"),
    trigger="any call",
    reference="class: readers of FP8 caches",
)
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-Q1", kind="A", title="the scale is applied to the values once more",
           reference="vllm-project/vllm#37054", outputs=("o",), patch=_reads(_scaled_twice)),
    _fault(id="attention-Q2", kind="A", title="the scale is left out of the second product",
           reference="sgl-project/sglang#34765", outputs=("o",), patch=_reads(_values_unscaled)),
    _fault(id="attention-Q3", kind="E",
           title="rows are written without the scale that they are read with",
           reference="NVIDIA/TensorRT-LLM#16916", patch=_reads(_written_unscaled)),
    _fault(id="attention-Q4", title="the scale is rounded to bf16",
           reference="vllm-project/vllm#49435, #54563", trigger="scales that are no powers of two",
           dtypes=("fp32", "bf16"), patch=_reads(_scale_in_bf16)),
    _fault(id="attention-Q5", title="values are clamped where another flavour of the format ends",
           reference="vllm-project/vllm#32976", patch=_reads(_other_flavour)),
    _fault(id="attention-Q6", kind="A",
           title="the columns that are not quantised saturate with the scale of the others",
           reference="vllm-project/vllm#42956", patch=_reads(_others_quantised)),
    _fault(id="attention-Q7", kind="A", title="values are divided by the scale",
           reference="vllm-project/vllm-xpu-kernels#475", patch=_reads(_divided)),
    _fault(id="attention-Q8", kind="F", title="tokens are addressed with the bytes of a bf16 cache",
           reference="vllm-project/vllm#38719 (b)", stage="gather",
           patch=lambda _: ListPatch(named=_bf16_strides)),
    _fault(id="attention-Q9", kind="E", title="the scales of the first call are compiled in",
           reference="b12x#63", trigger="two calls of one shape, the second with other scales",
           patch=lambda _: scales_of_the_first_call()),
    _fault(id="fp8-1", kind="B", title="a tile has the scale of its neighbour",
           trigger="several tiles", patch=_reads(_neighbour)),
    _fault(id="fp8-2", title="e5m2 is read instead of e4m3", patch=_reads(_e5m2)),
    _fault(id="fp8-3", title="the columns that are not quantised are scaled too",
           patch=_reads(_others_scaled)),
    _fault(id="fp8-4", title="no scale is applied", patch=_reads(_unscaled)),
    _fault(id="fp8-5", title="code 0x7f is 480, not NaN", trigger="NaN in a slot that is named",
           outputs=("o",), patch=_reads(_nan_is_a_number)),
    _fault(id="fp8-6", title="subnormal codes are read as 0", trigger="subnormal codes",
           patch=_reads(_subnormal_as_zero)),
)  # fmt: skip
