"""Softmax attention in JAX: jax.nn, and its Pallas kernels, interpreted without a device."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

from kdaverify.adapters.attention_layout import FLOATS, contracts, refusing, some_keys
from kdaverify.adapters.base import absent
from kdaverify.adapters.jax_programs import at_default_precision, compiled
from kdaverify.adapters.operator_kernel import shipped

OPS: Final = "jax.experimental.pallas.ops."
TILE: Final = 128
"""Of the TPU kernels: their sequences are multiples of it."""
BLOCK: Final = 64
"""Of the GPU kernel."""
SPLITS, SPLIT_BLOCK = 4, 32
NN_OPTIONS: Final = {"implementation": "xla", "return_residual": True}


@compiled
def _nn(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> tuple[Any, Any]:
    import jax

    attend = at_default_precision(
        functools.partial(
            jax.nn.dot_product_attention, scale=softmax_scale, is_causal=causal, **NN_OPTIONS
        )
    )
    o, lse = attend(q, k, v)
    return o, lse.swapaxes(1, 2)


@compiled
def _flash(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
    """The TPU kernel. Sequences are padded to its tiles, which segment ids keep out."""
    kernel = importlib.import_module(OPS + "tpu.flash_attention")
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    given = [_tiled(x) for x in _whole_heads(q, k, v)]
    ids = kernel.SegmentIds(
        *(_real(B, length, x.shape[2]) for length, x in zip((T, S), given[:2], strict=True))
    )

    def attend(*heads: Any) -> Any:
        return kernel.flash_attention(
            *heads, segment_ids=ids, causal=causal, sm_scale=softmax_scale
        )

    return _interpreted_both_ways(attend)(*given)[:, :, :T].swapaxes(1, 2)


def _interpreted_both_ways(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its VJP interpreted too: the mode is that of the moment of tracing."""
    import jax
    from jax.experimental.pallas import tpu

    if jax.default_backend() == "tpu":
        return function

    def there(*arrays: Any) -> Any:
        with tpu.force_tpu_interpret_mode():
            return jax.vjp(function, *arrays)

    def back(pull: Any, cotangent: Any) -> Any:
        with tpu.force_tpu_interpret_mode():
            return pull(cotangent)

    @jax.custom_vjp
    def interpreted(*arrays: Any) -> Any:
        with tpu.force_tpu_interpret_mode():
            return function(*arrays)

    interpreted.defvjp(there, back)
    return interpreted


@compiled
def _splash(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
    """The TPU kernel of grouped heads with a mask of blocks. It has no scale: q comes scaled."""
    import jax

    kernel = importlib.import_module(OPS + "tpu.splash_attention")
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    given = [_tiled(x.swapaxes(1, 2)) for x in (_scaled(q, softmax_scale), k, v)]
    shape = (given[0].shape[2], given[1].shape[2])
    mask = kernel.CausalMask(shape, offset=S - T) if causal else kernel.FullMask(shape)
    attend = kernel.make_splash_mha(
        kernel.MultiHeadMask([mask] * q.shape[2]),
        head_shards=1,
        q_seq_shards=1,
        interpret=jax.default_backend() != "tpu",
    )
    ids = kernel.SegmentIds(_real(B, T, shape[0]), _real(B, S, shape[1]))
    return jax.vmap(attend)(*given, ids)[:, :, :T].swapaxes(1, 2)


@compiled
def _mha(q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
    """The GPU kernel. Its tokens are padded to blocks, which segment ids keep out."""
    import jax
    import jax.numpy as jnp

    kernel = importlib.import_module(OPS + "gpu.attention")
    B, T, S = q.shape[0], q.shape[1], k.shape[1]
    assert T == S
    given = [_tiled(x, BLOCK).swapaxes(1, 2) for x in _whole_heads(q, k, v)]
    o = kernel.mha(
        *given,
        _real(B, T, given[0].shape[1]),
        sm_scale=softmax_scale,
        causal=causal,
        block_sizes=kernel.BlockSizes(
            block_q=BLOCK,
            block_k=BLOCK,
            block_q_dkv=BLOCK,
            block_kv_dkv=BLOCK,
            block_q_dq=BLOCK,
            block_kv_dq=BLOCK,
        ),
        interpret=jax.default_backend() != "gpu",
    )
    return jnp.asarray(o)[:, :T]


@compiled
def _decode(q: Any, k: Any, v: Any, *, softmax_scale: float) -> tuple[Any, Any]:
    """The GPU kernel for one query token, keys cut into splits; their number is a length of it."""
    import jax
    import jax.numpy as jnp

    kernel = importlib.import_module(OPS + "gpu.decode_attention")
    spare = -k.shape[1] % (SPLITS * SPLIT_BLOCK)
    padded = (jnp.pad(x, ((0, 0), (0, spare), (0, 0), (0, 0))) for x in (k, v))
    o, (total, top) = kernel.gqa(
        q[:, 0],
        *padded,
        kv_seq_len=jnp.full(len(q), k.shape[1]),
        sm_scale=softmax_scale,
        block_k=SPLIT_BLOCK,
        k_splits=SPLITS,
        interpret=jax.default_backend() != "gpu",
        return_residuals=True,
    )
    return o[:, None], (top + jnp.log(total))[..., None]


@compiled
def _paged(
    q: Any, cache: Any, block_table: Any, cache_seqlens: Any, *, d_v: int, softmax_scale: float
) -> Any:
    """The TPU kernel over pages. It has no scale, and one width: q comes multiplied by the scale,
    the values are whole rows of the cache, cut afterwards, and entries of no page name one.
    """
    from jax.experimental.pallas import tpu

    kernel = importlib.import_module(OPS + "tpu.paged_attention")
    pages, table = cache.transpose(2, 0, 1, 3), block_table.clip(0, len(cache) - 1)
    with tpu.force_tpu_interpret_mode():
        o = kernel.paged_attention(
            _scaled(q, softmax_scale)[:, 0],
            pages,
            pages,
            cache_seqlens,
            table,
            pages_per_compute_block=1,
        )
    return o[:, None, :, :d_v]


def _scaled(q: Any, softmax_scale: float) -> Any:
    """q times the scale in fp32, rounded once: a scale that is rounded to 16 bits itself leans all
    scores and dq to one side, by up to 2^-9 in bf16.
    """
    return (q.astype("float32") * softmax_scale).astype(q.dtype)


def _whole_heads(q: Any, *keys: Any) -> tuple[Any, ...]:
    """[B, heads, tokens, width], KV heads repeated for their query heads."""
    return tuple(_repeated(x, q.shape[2] // x.shape[2]).swapaxes(1, 2) for x in (q, *keys))


def _repeated(x: Any, times: int) -> Any:
    """By way of fp32: the gradient of a repeated array is summed in its own format, and over 16
    heads in bf16 that sum alone is wrong by 4.9e-3, which is not the kernel's error.
    """
    if times == 1:
        return x
    return x.astype("float32").repeat(times, axis=2).astype(x.dtype)


def _tiled(x: Any, tile: int = TILE) -> Any:
    """Zero tokens up to a multiple of the tile."""
    import jax.numpy as jnp

    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % tile), (0, 0)))


def _real(batch: int, length: int, padded: int) -> Any:
    """Segment ids: 1 for tokens, 0 for padding."""
    import jax.numpy as jnp

    return jnp.broadcast_to(jnp.arange(padded) < length, (batch, padded)).astype(jnp.int32)


def _equal_lengths(problem: Any) -> str | None:
    """Of the GPU kernel, whose segment ids are those of q and k at once."""
    same = all(s_q == s_k for s_q, s_k in problem.pairs)
    return None if same else "s_q = s_k: one row of segment ids is for both"


def _one_query(problem: Any) -> str | None:
    one = all(s_q == 1 for s_q, _ in problem.pairs)
    return None if one else "one query token: it is a decode kernel"


_adapter = functools.partial(
    shipped,
    framework="jax",
    dtypes=FLOATS,
    missing=lambda: absent(("jax", "ml_dtypes"), "pip install 'kdaverify[pallas]'"),
)


def _interpreted(device: str) -> dict[str, Any]:
    """The mode of a Pallas kernel, which is interpreted where its device is not there."""

    def environment() -> dict[str, str]:
        import jax

        return {"mode": "native" if jax.default_backend() == device else "interpreted"}

    return {"environment": environment}


ON_TPU: Final = _interpreted("tpu")
ON_GPU: Final = _interpreted("gpu")
NN: Final = _adapter(
    "attention",
    _nn,
    "jax-nn-attention",
    contract=contracts("math-{0}[lse:{0}]"),
    causal_alignment="top_left",
    value_width="same",
)
"""Its LSE has the format of q."""
PALLAS_FLASH: Final = _adapter(
    "attention",
    _flash,
    "pallas-flash",
    contract=contracts("math-{0}"),
    lse="none",
    causal_alignment="top_left",
    value_width="same",
    supports=some_keys,
    **ON_TPU,
)
"""Of a single block of keys, up to 128, its `_flash_attention_kernel_single_batch_single_step` is
another kernel than that of more: P is divided by its row sum before it is rounded to the format of
V. Both are held to that contract; the online one is within it.
"""
PALLAS_SPLASH: Final = _adapter(
    "attention",
    _splash,
    "pallas-splash",
    contract=contracts("online128-{0}[scale:q;q_scaled:{0}]"),
    lse="none",
    empty_out="unspecified",
    supports=some_keys,
    **ON_TPU,
)
PALLAS_MHA: Final = _adapter(
    "attention",
    _mha,
    "pallas-mha",
    contract=contracts("online64-{0}[delta_product:{0};delta:{0}]"),
    lse="none",
    causal_alignment="top_left",
    value_width="same",
    supports=refusing(_equal_lengths, some_keys),
    **ON_GPU,
)
"""Its `_preprocess_backward_kernel` takes jnp.sum(o * do) of arrays in the format of q: products
and their sum are rounded to it.
"""
PALLAS_DECODE: Final = _adapter(
    "attention",
    _decode,
    "pallas-decode",
    contract=contracts(f"online{SPLIT_BLOCK}-{{0}}[o:fp32;partial_o:{{0}};splits:{SPLITS}]"),
    gradients=False,
    value_width="same",
    supports=refusing(_one_query, some_keys),
    **ON_GPU,
)
PALLAS_PAGED: Final = _adapter(
    "mla_decode",
    _paged,
    "pallas-paged",
    contract=contracts("online64-{0}[scale:q;q_scaled:{0}]"),
    lse="none",
    supports=refusing(_one_query, some_keys),
    **ON_TPU,
)
