"""Softmax attention in torch: scaled_dot_product_attention, flex_attention, ring merges."""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kdaverify.adapters.attention_layout import FLOATS, by_heads, contracts, refusing, some_keys
from kdaverify.adapters.operator_kernel import shipped
from kdaverify.problems.axes import TORCH

_NO_KERNEL: Final = re.compile(r"no available kernel|no kernel found", re.IGNORECASE)
FEWEST_COLUMNS, MOST_IN_FP32 = 16, 128
PROGRAMS: Final = 256
"""Compiled forms of one function: widths, formats, masks, groups, with and without a backward."""
RING: Final = "torch.distributed.tensor.experimental._context_parallel._attention"


def _flash(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """The CPU kernel behind scaled_dot_product_attention, which returns its LSE here."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    o, lse = kernel(*by_heads(q, k, v), 0.0, causal, scale=softmax_scale)
    return o.transpose(1, 2), lse


def _sdpa(*backends: SDPBackend) -> Callable[..., Tensor]:
    def sdpa(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
        grouped = q.shape[2] != k.shape[2]
        with _declining(), sdpa_kernel([*backends]):
            heads = dict(zip(("query", "key", "value"), by_heads(q, k, v), strict=True))
            o = functional.scaled_dot_product_attention(
                **heads, is_causal=causal, scale=softmax_scale, enable_gqa=grouped
            )  # pyright: ignore[reportArgumentType]
        return o.transpose(1, 2)

    sdpa.__qualname__ = f"scaled_dot_product_attention of {backends[0].name}"
    return sdpa


@contextmanager
def _declining() -> Generator[None]:
    """A shape that no kernel of the chosen path takes is declined: the caller gets no number."""
    try:
        yield
    except RuntimeError as error:
        if _NO_KERNEL.search(str(error)):
            raise NotImplementedError(str(error)) from error
        raise


def _flexed(
    attend: Callable[..., Any],
    *heads: Tensor,
    offset: int | Tensor,
    softmax_scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """flex_attention of q, k and v. The causal border is a score_mod of the caller.

    Args:
        offset: keys more than queries.
    """
    q, k, _ = heads

    def border(score: Tensor, _b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i + offset, score, -torch.inf)

    o, lse = attend(
        *by_heads(*heads),
        score_mod=border if causal else None,
        scale=softmax_scale,
        enable_gqa=q.shape[2] != k.shape[2],
        return_lse=True,
    )
    return o.transpose(1, 2), lse


def _flex(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """In eager mode."""
    attend = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    words: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal}
    with warnings.catch_warnings():
        # Uncompiled is what is tested here.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        warnings.filterwarnings("ignore", category=FutureWarning)
        return _flexed(attend, q, k, v, offset=k.shape[1] - q.shape[1], **words)


@functools.cache
def _compiled() -> Callable[..., Any]:
    """One program for all lengths of a width and format; what no program takes is an error, not the
    eager form.
    """
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.config.recompile_limit = PROGRAMS
    dynamo.config.fail_on_recompile_limit_hit = True
    attend = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    return torch.compile(attend, dynamic=True)


def _flex_compiled(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """The Triton kernels of a device. The border is a tensor: a number would be a program each."""
    offset = torch.tensor(k.shape[1] - q.shape[1], device=q.device)
    words: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal}
    return _flexed(_compiled(), q, k, v, offset=offset, **words)


def _ring_merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """What context_parallel does with the parts of a sequence, in fp32."""
    merger = importlib.import_module(RING)._SDPAMerger(True, seq_dim=1)  # noqa: FBT003, SLF001
    for o, lse in ((o_a, lse_a), (o_b, lse_b)):
        merger.step(o.transpose(0, 1), lse, False)  # noqa: FBT003
    o, lse = merger.results()
    return o.transpose(0, 1), lse


def _in_rows_of_16_bytes(problem: Any) -> str | None:
    """Of the kernels of CUDA: for other widths torch 2.11 finds "no available kernel"."""
    wanted = 16 // TORCH[problem.dtype].itemsize
    fits = problem.d_k % wanted == problem.d_v % wanted == 0
    return None if fits else f"widths that are multiples of {wanted}: it has no kernel for others"


def _tiles_that_fit(problem: Any) -> str | None:
    """Of compiled flex_attention: torch 2.11 takes rows of 16 columns and more. In fp32 no tile of
    136 columns and more fits the shared memory of an H200.
    """
    if min(problem.d_k, problem.d_v) < FEWEST_COLUMNS:
        return f"at least {FEWEST_COLUMNS} columns"
    wide = problem.dtype == "fp32" and problem.d_k > MOST_IN_FP32
    return f"at most {MOST_IN_FP32} columns of keys in fp32" if wide else None


def _more_than_one_key(problem: Any) -> str | None:
    """Of cuDNN."""
    return "more than one key: it has no kernel for one" if problem.s_k == 1 else None


_adapter = functools.partial(shipped, dtypes=FLOATS)
SDPA_FLASH: Final = _adapter(
    "attention",
    _flash,
    "torch-sdpa-flash",
    contract=contracts("online64-{0}"),
    causal_alignment="top_left",
    value_width="same",
    # scaled_dot_product_attention takes its math path for no keys; the kernel ends the process.
    supports=some_keys,
)
SDPA_MATH: Final = _adapter(
    "attention",
    _sdpa(SDPBackend.MATH),
    "torch-sdpa-math",
    contract=contracts("math-fp32"),
    lse="none",
    causal_alignment="top_left",
)
"""It computes in fp32 to its one rounding."""
FLEX: Final = _adapter(
    "attention", _flex, "torch-flex", contract=contracts("math-{0}"), gradients=False
)
"""Its backward is CUDA's alone."""
FLEX_COMPILED: Final = _adapter(
    "attention",
    _flex_compiled,
    "torch-flex-compiled",
    device="cuda",
    contract=contracts("online64-{0}"),
    widths=(64, 128),
    supports=refusing(some_keys, _tiles_that_fit),
)
"""In few widths: each is compiled for every format, direction and mask, seconds each."""
SDPA_EFFICIENT: Final = _adapter(
    "attention",
    _sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "torch-sdpa-efficient",
    device="cuda",
    lse="none",
    # Of four elements of dk in fp16 and bf16 the kernel's bits are those of P rounded first.
    contract=contracts("online64-{0}[d_scores:rounded]"),
    causal_alignment="top_left",
    key_heads="all",
    supports=refusing(some_keys, _in_rows_of_16_bytes),
)
SDPA_CUDNN: Final = _adapter(
    "attention",
    _sdpa(SDPBackend.CUDNN_ATTENTION),
    "torch-sdpa-cudnn",
    dtypes=("bf16", "fp16"),
    device="cuda",
    lse="none",
    contract=contracts("online64-{0}", dtypes=("bf16", "fp16")),
    causal_alignment="top_left",
    supports=refusing(some_keys, _in_rows_of_16_bytes, _more_than_one_key),
)
RING_MERGE: Final = _adapter("merge_state", _ring_merge, "torch-ring-merge", gradients=False)
