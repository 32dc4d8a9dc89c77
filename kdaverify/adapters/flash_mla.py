"""FlashMLA: the dense decode of Hopper, from the library inside a vLLM wheel.

The package itself is never imported: a folder `vllm` with the library alone will do.
Source: vllm/third_party/flashmla/flash_mla_interface.py of vLLM 0.33.0; its arithmetic:
`oracles.attention.seesaw`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.base import NOTHING_YET, absent
from kdaverify.adapters.operator_kernel import shipped
from kdaverify.adapters.vllm_package import INSTALL, part_of_package, version

LIBRARY: Final = "_flashmla_C"
FILE: Final = Path(f"{LIBRARY}.abi3.so")
D_K, D_V, PAGE = 576, 512, 64
"""The one shape that dense decode is compiled for."""
RAN: Final[list[str]] = [NOTHING_YET]


def missing() -> str | None:
    if lacking := absent(("vllm",), INSTALL):
        return lacking
    return None if part_of_package(FILE) is not None else f"no {FILE} in the package vllm"


@functools.cache
def _library() -> Any:
    """Loaded once in a process."""
    torch.ops.load_library(str(part_of_package(FILE)))
    return getattr(torch.ops, LIBRARY)


def called(name: str, *given: Any) -> Any:
    """What an entry of the library returns."""
    found = getattr(_library(), name)(*given)
    RAN[0] = f"torch.ops.{LIBRARY}.{name}"
    return found


def _decode(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """A schedule is made for every call, as it belongs to its lengths."""
    schedule = splits = out = None
    given = (q, cache, d_v, cache_seqlens, block_table, softmax_scale, causal)
    o, lse, *_ = called("dense_decode_fwd", *given, schedule, splits, out)
    return o, lse


def environment() -> dict[str, str]:
    return {"vllm": version(unknown="the library alone"), "device": torch.cuda.get_device_name()}


FLASH_MLA: Final = shipped(
    "mla_decode",
    _decode,
    "flash_mla",
    contract=contracts("seesaw-{0}", dtypes=("bf16", "fp16")),
    dtypes=("bf16", "fp16"),
    device="cuda",
    isolate=True,
    widths=(D_V,),
    d_k=D_K,
    page=PAGE,
    key_heads="one",
    empty_lse="+inf",
    missing=missing,
    proof=lambda: RAN[0],
    environment=environment,
)
