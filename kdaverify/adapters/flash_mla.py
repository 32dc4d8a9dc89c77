"""FlashMLA: the dense decode of Hopper, from the library inside a vLLM wheel.

The package itself is never imported: a folder `vllm` with the library alone will do.
Source: vllm/third_party/flashmla/flash_mla_interface.py of vLLM 0.33.0; its arithmetic:
`oracles.attention.seesaw`.
"""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import contracts
from kdaverify.adapters.base import NOTHING_YET, absent
from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import operator_kernel

LIBRARY: Final = "_flashmla_C"
INSTALL: Final = "pip install --no-deps vllm==0.33.0"
D_K, D_V, PAGE = 576, 512, 64
"""The one shape that dense decode is compiled for."""
_RAN: Final[list[str]] = [NOTHING_YET]


def _library() -> Path | None:
    """The shared object; None where it is not."""
    found = util.find_spec("vllm")
    places = [] if found is None else found.submodule_search_locations or []
    named = (Path(place) / f"{LIBRARY}.abi3.so" for place in places)
    return next((path for path in named if path.is_file()), None)


def _missing() -> str | None:
    if lacking := absent(("vllm",), INSTALL):
        return lacking
    return None if _library() is not None else f"no {LIBRARY}.abi3.so in the package vllm"


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
    torch.ops.load_library(str(_library()))
    kernel: Any = getattr(torch.ops, LIBRARY).dense_decode_fwd
    schedule = splits = out = None
    given = (q, cache, d_v, cache_seqlens, block_table, softmax_scale, causal)
    o, lse, *_ = kernel(*given, schedule, splits, out)
    _RAN[0] = f"torch.ops.{LIBRARY}.dense_decode_fwd"
    return o, lse


def _environment() -> dict[str, str]:
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        version = "the library alone"
    return {"vllm": version, "device": torch.cuda.get_device_name()}


FLASH_MLA: Final = operator_kernel(
    "mla_decode",
    _decode,
    {
        "name": "flash_mla",
        "contract": contracts("seesaw-{0}", dtypes=("bf16", "fp16")),
        "dtypes": ("bf16", "fp16"),
        "device": "cuda",
        "isolate": True,
        "widths": (D_V,),
        "d_k": D_K,
        "page": PAGE,
        "key_heads": "one",
        "empty_lse": "+inf",
        "missing": _missing,
        "proof": lambda: _RAN[0],
        "environment": _environment,
    },
    FRAMEWORKS["torch"],
)
