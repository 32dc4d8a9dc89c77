"""Faults of the one-token entry point, which continues from what the chunk left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import part_of, stepped, strikes
from kdaverify.faults.views import each, one_of
from oracles.inputs import Inputs

_decode = partial(Fault, stage="decode")
_WIDE = ("fp32", "fp16")


def _beta_in_16_bits(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    return kernel(each(x, ("beta",), FORMATS["bf16"].round))


def _beta_rounded_in_the_chunk(setting: Setting) -> Patch:
    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        beta = part_of(x.beta, FORMATS["bf16"].round(x.beta), setting.strength)
        return kernel(replace(x, beta=beta)) if x.T > 1 else kernel(x)

    return Patch(forward=forward)


def _by_token(
    update: Callable[[Tensor, Inputs], Tensor],
) -> Callable[[PatchedPipeline, Inputs], Outputs]:
    """A decode kernel of its own: one token a sequence, from the decayed state to the next."""

    def call(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        group = x.HV // x.H
        wide = x.to(kernel.contract.work)
        q, k = (each_head.repeat_interleave(group, dim=2)[:, 0] for each_head in (wide.q, wide.k))
        one = replace(wide, q=q[:, None], k=k[:, None])
        state = update(wide.state * wide.g[:, 0, ..., None].exp(), one)
        o = x.factor * torch.einsum("nhk,nhkv->nhv", q, state)
        return o[:, None].to(x.q.dtype), state.to(kernel.contract.carry.dtype)

    return call


def _corrected(decayed: Tensor, x: Inputs) -> Tensor:
    """k [N, HV, K] written with v corrected, as it should be."""
    k, v, beta = x.k[:, 0], x.v[:, 0], x.beta[:, 0]
    u = beta[..., None] * (v - torch.einsum("nhkv,nhk->nhv", decayed, k))
    return decayed + torch.einsum("nhk,nhv->nhkv", k, u)


def _key_corrected_instead(decayed: Tensor, x: Inputs) -> Tensor:
    k, v, beta = x.k[:, 0], x.v[:, 0], x.beta[:, 0]
    corrected = beta[..., None] * (k - torch.einsum("nhkv,nhv->nhk", decayed, v))
    return decayed + torch.einsum("nhk,nhv->nhkv", corrected, v)


def _mask_transposed(decayed: Tensor, x: Inputs) -> Tensor:
    state = _corrected(decayed, x)
    row = torch.arange(x.K, device=state.device)[:, None]
    column = torch.arange(x.V, device=state.device)
    return state.masked_fill((row >= x.V) | (column >= x.K), 0.0)


def _zeros_from_a_head(setting: Setting) -> Patch:
    def step(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        return (
            o.masked_fill(one_of(2, o, setting.random), 0.0) if strikes(setting.random, 0.25) else o
        ), final

    return Patch(step=step)


def _state_transposed(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if x.K != x.V or x.initial_state is None:
        return kernel(x)
    return kernel(replace(x, initial_state=x.initial_state.transpose(-1, -2).contiguous()))


def _state_in_the_inputs_type(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    return o, final.to(x.q.dtype).to(final.dtype)


FAULTS: Final = (
    _decode("GA10", "decode rounds beta to 16 bits",
            "sgl-project/sglang#38975,#38977; vllm-project/vllm#53877", "C",
            "betas of more than 8 bits, decode", ("o", "final_state"), stepped(_beta_in_16_bits),
            dtypes=_WIDE, graded=True),
    _decode("GA12", "the chunk rounds beta, decode does not",
            "sgl-project/sglang#36014; 1CatAI/1Cat-vLLM#267", "C",
            "betas of more than 8 bits, chunk and decode compared", ("o", "final_state"),
            _beta_rounded_in_the_chunk, dtypes=_WIDE, graded=True),
    _decode("H15", "the key is corrected instead of the value",
            "fla-org/fla#623 (introduced by #589)", "A", "decode", ("o", "final_state"),
            stepped(_by_token(_key_corrected_instead)), graded=True),
    _decode("H16", "the mask of the state tile is transposed", "fla-org/fla@eb7c8baa,@da1970a6",
            "B", "decode, K different from V", ("o", "final_state"),
            stepped(_by_token(_mask_transposed)), graded=True),
    _decode("O11", "decode gives zeros for a head", "huawei-csl/megagdn-pto#35 (on #34)", "D",
            "decode in bf16, repeated", ("o",), _zeros_from_a_head, dtypes=("bf16",)),
    _decode("S8", "decode continues from the state transposed", "gittensor-ai-lab/sparkinfer#615",
            "A", "decode, K = V, a state", ("o", "final_state"), stepped(_state_transposed),
            graded=True),
    _decode("S12", "decode leaves the state in the type of its inputs", "ollama/ollama#15865", "C",
            "decode with 16-bit inputs", ("final_state",), stepped(_state_in_the_inputs_type),
            dtypes=("bf16", "fp16"), graded=True),
)  # fmt: skip
