"""Wrong kernels, each one small patch of a right one, all written with the public decorator as a
user would write a port.

Every kernel here is named in tests/faults/test_planted_faults.py together with the suite that must
reject it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import kdaverify as kv
from oracles.arithmetic import Arithmetic
from oracles.chunk import STAGES, Chunk, Stages, chunk
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

CHUNK = 64
Outputs = tuple[Tensor, Tensor]


def run(inputs: Inputs, dtype: str, stages: Stages = STAGES) -> Outputs:
    """The right kernel: 64-token chunks, storage in the problem's dtype, fp32 sums and state."""
    storage = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]

    def store(name: str, tensor: Tensor) -> Tensor:
        return tensor if name in ("G", "S") else tensor.to(storage).to(tensor.dtype)

    o, final = chunk(
        inputs,
        chunk_size=CHUNK,
        dtype=torch.float32,
        arithmetic=Arithmetic(store=store),
        stages=stages,
    )
    return o.to(inputs.q.dtype), final


def port(
    name: str, dtype: str, kernel: Callable[[Inputs], Outputs], *, differentiable: bool = False
) -> Any:
    """`kernel` behind the decorator, declared as what it pretends to be;
    faults of the forward have no backward.
    """

    @kv.kernel(
        name=name,
        contract=f"chunk64-{dtype}",
        layout="bthd",
        state="kv",
        gate="log",
        beta="value",
        packing="cu_seqlens",
        dtypes=(dtype,),
    )
    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float,
        initial_state: Tensor,
        cu_seqlens: Tensor,
    ) -> Outputs:
        with torch.set_grad_enabled(differentiable):
            return kernel(
                Inputs(
                    q,
                    k,
                    v,
                    g,
                    beta,
                    scale=scale,
                    initial_state=initial_state,
                    cu_seqlens=cu_seqlens,
                )
            )

    return call


def staged(name: str, dtype: str, **patched: Callable[[Chunk], None]) -> Any:
    """The right kernel with some stages replaced."""
    return port(
        name,
        dtype,
        lambda inputs: run(inputs, dtype, replace(STAGES, **patched)),
        differentiable=not patched,
    )


right_fp32 = staged("right_fp32", "fp32")
right_bf16 = staged("right_bf16", "bf16")


def _columns_decayed(c: Chunk) -> None:
    if c.S.shape[-1] != c.S.shape[-2]:
        return STAGES.state(c)
    before, decay = c.S, c.decay(slice(-1, None))
    STAGES.state(c)
    c.S = c.S - before * decay.transpose(-1, -2) + before * decay
    return None


decay_on_the_value_axis = staged("decay_on_the_value_axis", "bf16", state=_columns_decayed)


def _keys_decayed_twice(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = c.kg * c.decay(slice(-1, None), slice(None))


key_decay_applied_twice = staged("key_decay_applied_twice", "bf16", wy=_keys_decayed_twice)


def _one_tile_for_both_terms(c: Chunk) -> None:
    STAGES.output(c)
    full = c.tokens.valid.all(dim=1)[:, None, None, None]
    c.o = c.o + torch.where(full, c.scale * c.dot(c.qg, c.h), torch.zeros_like(c.o))


output_terms_share_a_tile = staged(
    "output_terms_share_a_tile", "bf16", output=_one_tile_for_both_terms
)


def _last_gate_from_padding(c: Chunk) -> None:
    STAGES.cumsum(c)
    c.G = c.G.masked_fill(~c.tokens.valid[:, None, :, None], 0.0)


last_gate_from_padding = staged("last_gate_from_padding", "bf16", cumsum=_last_gate_from_padding)


def _drops_partial_chunk(inputs: Inputs) -> Outputs:
    o, final = run(inputs, "bf16")
    whole = inputs.T // CHUNK * CHUNK
    if inputs.cu_seqlens is not None or whole == inputs.T:
        return o, final
    if not whole:
        return o, inputs.state.clone()
    kept = {name: getattr(inputs, name)[:, :whole] for name in TOKENS}
    return o, run(replace(inputs, **kept), "bf16")[1]


resume_drops_partial_chunk = port("resume_drops_partial_chunk", "bf16", _drops_partial_chunk)


def _transposed(inputs: Inputs) -> Outputs:
    o, final = run(inputs, "bf16")
    return o, final.transpose(-1, -2).contiguous() if inputs.K == inputs.V else final


state_transposed_where_square = port("state_transposed_where_square", "bf16", _transposed)
beta_in_bf16 = port(
    "beta_in_bf16", "fp32", lambda x: run(replace(x, beta=x.beta.bfloat16().float()), "fp32")
)
log_of_alpha_plus_eps = port(
    "log_of_alpha_plus_eps",
    "fp32",
    lambda x: run(replace(x, g=(x.g.exp() + 1e-6).log().clamp(max=0.0)), "fp32"),
)


def _factorised_scores(c: Chunk) -> None:
    up, down = c.G.exp(), (-c.G).exp()
    keys = (c.tokens.k * down).transpose(-1, -2)
    c.Aqk = c.store("Aqk", c.scale * c.dot(c.tokens.q * up, keys).tril())
    c.Akk = c.store("Akk", (c.tokens.beta[..., None] * c.dot(c.tokens.k * up, keys)).tril(-1))


exp_of_minus_cumsum = staged("exp_of_minus_cumsum", "fp32", scores=_factorised_scores)


def _doubling(c: Chunk) -> None:
    def low(t: Tensor) -> Tensor:
        return t.bfloat16().float()

    power, identity = low(-c.Akk), torch.eye(c.Akk.shape[-1])
    inverse = identity + power
    for _ in range(5):
        power = low(power @ power)
        inverse = low(inverse @ (identity + power))
    c.R = inverse


doubling_inverse_in_bf16 = staged("doubling_inverse_in_bf16", "bf16", solve=_doubling)


def _one_token_zeroed(inputs: Inputs) -> Outputs:
    o, final = run(inputs, "bf16")
    o = o.clone()
    o[:, 60::4000] = 0
    return o, final


one_token_zeroed = port("one_token_zeroed", "bf16", _one_token_zeroed)


def _one_sequence(inputs: Inputs) -> Outputs:
    if inputs.cu_seqlens is None:
        return run(inputs, "bf16")
    state = None if inputs.initial_state is None else inputs.initial_state[:1]
    o, final = run(replace(inputs, cu_seqlens=None, initial_state=state), "bf16")
    return o, final.expand(inputs.N, *final.shape[1:]).contiguous()


ignores_cu_seqlens = port("ignores_cu_seqlens", "bf16", _one_sequence)
