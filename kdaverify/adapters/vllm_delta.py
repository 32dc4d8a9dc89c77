"""vLLM's delta rules: its chunk and recurrent Triton kernels of KDA and Gated DeltaNet.

Source: vllm/third_party/flash_linear_attention/ops of vLLM 0.33.0, forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.kernel_adapter import KernelAdapter, OwnCalls, adapted
from kdaverify.adapters.vllm_package import NATIVE, environment, missing, proof, watched

OPS: Final = "third_party.flash_linear_attention.ops"
HALF: Final = ("bf16", "fp16")
Pair = tuple[Tensor, Tensor]
Kernel = Callable[..., Pair]


@dataclass(frozen=True)
class DeltaCall:
    """A call in the package's layout.

    Args:
        tokens: q, k, v, g, beta; of the recurrent kernels without a batch axis.
        scale: of q.
        state: [N, HV, V, K] in fp32, zeros where none is given; never the caller's.
        offsets: of a pack, or None.
    """

    tokens: tuple[Tensor, ...]
    scale: float
    state: Tensor
    offsets: Tensor | None

    def words(self) -> dict[str, Any]:
        return {"scale": self.scale, "initial_state": self.state, "cu_seqlens": self.offsets}


def _gated_chunk(module: ModuleType, call: DeltaCall) -> Pair:
    return module.chunk_gated_delta_rule(*call.tokens, output_final_state=True, **call.words())


def _kda_chunk(module: ModuleType, call: DeltaCall) -> Pair:
    """o is written over v, which the layer does not read again: a copy of v is handed over."""
    q, k, v, g, beta = call.tokens
    tokens = (q, k, v.clone(), g, beta.float())  # its models make beta in fp32
    return module.chunk_kda(*tokens, output_final_state=True, **call.words())


def _gated_steps(module: ModuleType, call: DeltaCall) -> Pair:
    return in_pool(module.fused_recurrent_gated_delta_rule, call)


def _kda_steps(module: ModuleType, call: DeltaCall) -> Pair:
    return in_pool(module.fused_recurrent_kda, call, use_qk_l2norm_in_kernel=False)


def in_pool(kernel: Kernel, call: DeltaCall, **words: Any) -> Pair:
    """As serving calls it: a slot of a pool for the state after each token, and the first slot of a
    sequence holds the state that it begins with. Slot 0 is that of no sequence.
    """
    assert call.offsets is not None  # in a layout without a batch axis they are always given
    lengths, N = call.offsets.diff(), len(call.state)
    longest = max(int(lengths.max()), 1)
    slots = 1 + torch.arange(N * longest, dtype=torch.int32, device=lengths.device).view(N, longest)
    pool = call.state.new_full((1 + N * longest, *call.state.shape[1:]), torch.nan)
    pool[slots[:, 0]] = call.state
    rows = [x[None].contiguous() for x in call.tokens]
    words |= call.words() | {"initial_state": pool, "ssm_state_indices": slots}
    o, _ = kernel(*rows, inplace_final_state=True, **words)
    last = (lengths - 1).clamp(min=0)[:, None]
    return o[0], pool[slots.gather(1, last)[:, 0]]


def _adapter(
    name: str,
    place: str,
    call: Callable[[ModuleType, DeltaCall], Pair],
    *,
    contract: str,
    **words: Any,
) -> KernelAdapter:
    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Pair:
        N = len(q) if cu_seqlens is None else len(cu_seqlens) - 1
        shape = (N, *v.shape[-2:], k.shape[-1])
        state = v.new_zeros(shape, dtype=torch.float32)
        if initial_state is not None:
            state.copy_(initial_state)
        given = DeltaCall((q, k, v, g, beta), scale, state, cu_seqlens)
        with torch.no_grad():
            return watched(f"{OPS}.{place}", q.dtype, lambda module: call(module, given))

    declared: dict[str, Any] = {
        "name": name,
        "contract": contract,
        "state": "vk",
        "packing": "cu_seqlens",
        "padding": "undefined",
        "gradients": False,
        "isolate": True,  # its kernels can take their process with them
        "device": "cuda" if NATIVE else "cpu",
        **words,
    }
    own = OwnCalls(proof=proof, environment=environment, missing=missing)
    found = adapted(Declaration(**declared), function, own)
    found.compiled = NATIVE
    return found


# On a device chunk kernels are compiled for every width, seconds each: the panel tests odd ones.
CHUNK: Final[Mapping[str, Any]] = {"dtypes": HALF, "widths": (64, 128) if NATIVE else ()}
VLLM_GDN: Final = _adapter(
    "vllm-gdn", "chunk", _gated_chunk, contract="gdn64", gates="head", **CHUNK
)
VLLM_GDN_RECURRENT: Final = _adapter(
    "vllm-gdn-recurrent",
    "fused_recurrent",
    _gated_steps,
    contract="fla-recurrent",
    layout="thd",
    gates="head",
    dtypes=("fp32", *HALF),
)
# Kimi Linear has as many value heads as key heads, and as wide ones: the chunk kernels read no
# further heads, and the recurrent ones return o in the shape of k.
VLLM_KDA: Final = _adapter(
    "vllm-kda",
    "kda",
    _kda_chunk,
    contract="vllm-kda" if NATIVE else "vllm-kda-interpreted",
    grouped_heads=False,
    **CHUNK,
)
VLLM_KDA_RECURRENT: Final = _adapter(
    "vllm-kda-recurrent",
    "kda",
    _kda_steps,
    contract="fla-recurrent",
    layout="thd",
    dtypes=("fp32", *HALF),
    grouped_heads=False,
    square=True,
)
