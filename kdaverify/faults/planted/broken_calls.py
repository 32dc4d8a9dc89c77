"""Forwards that break one rule of calls each: small patches of a right one, and that one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.poison import allocations_are_poisoned
from kdaverify.faults.fault import with_gradient
from oracles.inputs import Inputs

Outputs = tuple[Tensor, Tensor]
Patch = Callable[[Inputs, dict[Any, Any]], Outputs]
DTYPES = ("fp32", "bf16")
CHUNK = 64
LONG = 1024
"""Tokens from which the planted kernels take another path."""


def right(x: Inputs) -> Outputs:
    output = EAGER.forward(x)
    return output.o, output.final_state


def port(patch: Patch, **declared: Any) -> Adapter:
    """A kernel that keeps a dict between its calls."""
    return kernel(
        _function(patch),
        name="port",
        contract={"fp32": "chunk64-fp32", "bf16": "chunk64-bf16"},
        packing="cu_seqlens",
        dtypes=DTYPES,
        **declared,
    )


def decoding(patch: Patch) -> Adapter:
    """A right kernel with a decode entry point of its own."""
    return port(lambda x, _: right(x), step=_function(patch))


def _function(patch: Patch) -> Callable[..., Outputs]:
    kept: dict[Any, Any] = {}

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
        return patch(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens), kept)

    return call


def counted(kept: dict[Any, Any]) -> int:
    kept["calls"] = kept.get("calls", 0) + 1
    return kept["calls"]


def wrong_at_times(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    o, final = right(x)
    return (o * (1 + 1e-7 * (counted(kept) % 5 == 0)) if o.dtype == torch.float32 else o), final


def wrong_at_first(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    o, final = right(x)
    return o * (2 - 1.0 * (kept.setdefault(x.T, counted(kept)) != counted(kept) - 1)), final


def heads_by_threads(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Value heads are divided among torch's threads; the rest has no output."""
    o, final = right(x)
    done = x.HV - x.HV % min(torch.get_num_threads(), x.HV)
    return o.masked_fill(torch.arange(x.HV)[:, None] >= done, 0.0), final


def one_buffer(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    o, final = right(x)
    return kept.setdefault((o.shape, o.dtype), torch.empty_like(o)).copy_(o), final


def ring_of_buffers(x: Inputs, kept: dict[Any, Any], *, size: int = 32) -> Outputs:
    o, final = right(x)
    key = (o.shape, o.dtype, counted(kept) % size)
    return kept.setdefault(key, torch.empty_like(o)).copy_(o), final


def buffer_of_default_type(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """o passes through a buffer in torch's default type."""
    o, final = right(x)
    return torch.zeros(o.shape).to(o.device).copy_(o).to(o.dtype), final


def remembers(key: Callable[[Inputs], Any], field: str) -> Patch:
    """Takes one argument from the first call with the same key."""

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        own = getattr(x, field)
        # The tensor itself is kept too: the id of one that is gone may be that of the next.
        held, _ = kept.setdefault(
            (key(x), x.q.dtype), (own.clone() if isinstance(own, Tensor) else own, own)
        )
        return right(replace(x, **{field: held}))

    return patch


def from_the_start(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Takes v from the beginning of its memory."""
    return right(
        replace(
            x,
            v=torch.empty(0, dtype=x.v.dtype)
            .set_(x.v.untyped_storage())[: x.v.numel()]
            .view(x.v.shape)
            .nan_to_num(0.0),
        )
    )


def as_if_dense(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Takes k by its address and its shape alone."""
    return right(
        replace(
            x,
            k=x.k.as_strided(x.k.shape, torch.empty(x.k.shape, device="meta").stride()).nan_to_num(
                0.0
            ),
        )
    )


def tail_of_an_expanded_key(x: Inputs, _: dict[Any, Any]) -> Outputs:
    if x.k.stride(0) or x.B == 1:
        return right(x)
    k = x.k.clone()
    k[:, -1] = k[:, 0]
    return right(replace(x, k=k))


def demands(alignment: int) -> Patch:
    def patch(x: Inputs, _: dict[Any, Any]) -> Outputs:
        if x.q.data_ptr() % alignment:
            raise RuntimeError(f"misaligned address, wanted a multiple of {alignment}")
        return right(x)

    return patch


def tiled_heads(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Value head j reads key head j mod H."""
    heads = torch.arange(x.HV) % x.H
    return right(replace(x, q=x.q[:, :, heads], k=x.k[:, :, heads]))


def pooled(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """Continues from a pool of states, kept by shape and not cleared where there is no state."""
    state = x.initial_state if x.initial_state is not None else kept.get(x.v.shape)
    o, final = right(replace(x, initial_state=state))
    kept[x.v.shape] = final.float()
    return o, final


def slots_of_the_first_batch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """As many sequences as the first call had are computed."""
    o, final = right(x)
    slots = kept.setdefault("slots", x.B)
    return o, torch.where(torch.arange(x.B)[:, None, None, None] < slots, final, 0.0)


def int32_offsets(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Offsets of tokens wrap at 2^31 elements."""
    stride = x.v.stride(1)
    rows = [(t * stride + 2**31) % 2**32 - 2**31 for t in range(x.T)]
    start = x.v.storage_offset()
    v = torch.stack(
        [
            x.v.as_strided((x.B, x.HV, x.V), (x.v.stride(0), *x.v.stride()[2:]), start + row)
            for row in rows
        ],
        dim=1,
    )
    return right(replace(x, v=v))


def masks_by_products(x: Inputs, _: dict[Any, Any]) -> Outputs:
    used = (torch.arange(x.T) < sum(x.lengths)).to(x.v.dtype)[:, None, None]
    o, final = right(x)
    return o + 0 * (x.v * used).sum(dim=1, keepdim=True), final


def writes_sequences_alone(x: Inputs, _: dict[Any, Any]) -> Outputs:
    o, final = right(x)
    written = torch.empty_like(o)
    written[:, : sum(x.lengths)] = o[:, : sum(x.lengths)]
    return written, final


def held_before(like: Tensor) -> Tensor:
    """Clean memory, which only poisoning distinguishes from written zeros."""
    fresh = torch.empty_like(like)
    return fresh if allocations_are_poisoned() else fresh.zero_()


def adds_to_unwritten(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Adds o to 0 times its memory, as products do with an output factor of 0 kept."""
    o, final = right(x)
    return o + 0 * held_before(o), final


def first_entry_for_all(x: Inputs, _: dict[Any, Any]) -> Outputs:
    return right(replace(x, v=x.v[:1].expand_as(x.v)))


def last_entry_by_number(x: Inputs, _: dict[Any, Any]) -> Outputs:
    beta = x.beta.clone()
    beta[1:] *= 0.5
    return right(replace(x, beta=beta))


def grid(x: Inputs, _: dict[Any, Any]) -> Outputs:
    if x.N * x.HV > 65535:
        raise RuntimeError("invalid configuration argument")
    return right(x)


class Freed(torch.autograd.Function):
    """q as it is; its gradient is computed on the way to that of v alone."""

    @staticmethod
    def forward(_: Any, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return q.clone(), v.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        dq, dv = given
        return dq * ctx.needs_input_grad[1], dv


class Variants(torch.autograd.Function):
    """k, v, g and beta as they are; of one set of frozen inputs the gradient of the last gate is
    left out.
    """

    @staticmethod
    def forward(_: Any, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        return k.clone(), v.clone(), g.clone(), beta.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        dk, dv, dg, dbeta = given
        if ctx.needs_input_grad == (False, False, True, True):
            dg = torch.cat((dg[:, :-1], 0 * dg[:, -1:]), dim=1)
        return dk, dv, dg, dbeta


def variant_of_frozen_rows(x: Inputs, _: dict[Any, Any]) -> Outputs:
    rows = (x.k, x.v, x.g, x.beta)
    k, v, g, beta = Variants.apply(*rows)  # pyright: ignore[reportGeneralTypeIssues]
    return right(replace(x, k=k, v=v, g=g, beta=beta))


class VariantOfKeys(torch.autograd.Function):
    """All rows as they are; where q and k alone need gradients, and there is more than one chunk,
    k's is that of other terms: its last row is left out.
    """

    @staticmethod
    def forward(_: Any, *rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(row.clone() for row in rows)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, ...]:
        dq, dk, *others = given
        if ctx.needs_input_grad == (True, True, False, False, False) and dk.shape[1] > CHUNK:
            dk = torch.cat((dk[:, :CHUNK], 0 * dk[:, CHUNK:]), dim=1)
        return dq, dk, *others


def variant_of_keys(x: Inputs, _: dict[Any, Any]) -> Outputs:
    rows = (x.q, x.k, x.v, x.g, x.beta)
    q, k, v, g, beta = VariantOfKeys.apply(*rows)  # pyright: ignore[reportGeneralTypeIssues]
    return right(replace(x, q=q, k=k, v=v, g=g, beta=beta))


def freed(x: Inputs, _: dict[Any, Any]) -> Outputs:
    q, v = Freed.apply(x.q, x.v)  # pyright: ignore[reportGeneralTypeIssues]
    return right(replace(x, q=q, v=v))


def overwritten(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The backward of k leaves its result where the saved tensor lay."""
    scratch = torch.zeros_like(x.k)
    return right(replace(x, k=with_gradient(lambda dk: scratch.add_(dk).clone(), x.k)))


def saved_by(key: Hashable, x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The backward of k reads k from the buffer that the latest call of a key has left."""
    own = kept[key] = x.k.detach()

    def change(dk: Tensor) -> Tensor:
        read = kept[key]
        # NaN in padding is in both.
        return dk + ((read - own).nan_to_num(0.0) if read.shape == own.shape else 0)

    return right(replace(x, k=with_gradient(change, x.k)))


def saved_by_the_latest(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    return saved_by("k", x, kept)


def other_when_recorded(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Its path for training is off by 1 %, its gradients are right."""
    o, final = right(x)
    return o + (o.detach() * 0.01 if x.q.requires_grad and torch.is_grad_enabled() else 0), final


def other_for_inference(x: Inputs, _: dict[Any, Any]) -> Outputs:
    o, final = right(x)
    return o, final * 1.01 if torch.is_inference_mode_enabled() else final


def when_long(patch: Patch) -> Patch:
    """The patch on the path of long calls alone."""
    return lambda x, kept: patch(x, kept) if x.T >= LONG else right(x)


def other_without_gradients(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Its path for inference, outside of the mode of that name, too."""
    o, final = right(x)
    return o, final if torch.is_grad_enabled() else final * 1.01


def kept_for_a_server(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """Without gradients, v as the first call found it at this address."""
    if torch.is_grad_enabled():
        return right(x)
    return remembers(lambda x: (x.v.data_ptr(), x.v.shape, x.v.stride()), "v")(x, kept)


def rounded_without_gradients(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Its path for inference hands a given state from chunk to chunk in bf16."""
    if torch.is_grad_enabled() or x.initial_state is None or x.cu_seqlens is not None:
        return right(x)
    return _rounded_from(x, 1)


def rounded_in_packs_of_a_server(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """In inference mode, and of packs, states before the third chunk and later ones are bf16."""
    o, final = right(x)
    if x.cu_seqlens is None or not torch.is_inference_mode_enabled():
        return o, final
    o, final = o.clone(), final.clone()
    for number, (start, length) in enumerate(zip(x.starts, x.lengths, strict=True)):
        rows = slice(start, start + length)
        if length > 2 * CHUNK:
            tokens = {name: getattr(x, name)[:, rows] for name in ("q", "k", "v", "g", "beta")}
            one = replace(x, **tokens, initial_state=x.state[number : number + 1], cu_seqlens=None)
            o[:, rows], final[number : number + 1] = _rounded_from(one, 2)
    return o, final


def _rounded_from(x: Inputs, chunk: int) -> Outputs:
    """A batch in chunks, the state before one of them and before all later ones in bf16."""
    state, found = x.state, list[Tensor]()
    for first in range(0, x.T, CHUNK):
        rows = slice(first, first + CHUNK)
        tokens = {name: getattr(x, name)[:, rows] for name in ("q", "k", "v", "g", "beta")}
        # Not before the first chunk, nor behind the last.
        before = state.bfloat16().to(state.dtype) if first >= chunk * CHUNK else state
        o, state = right(replace(x, **tokens, initial_state=before))
        found.append(o)
    return torch.cat(found, dim=1), state


def one_token_in_place(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Decodes into the state that it is given."""
    o, final = right(x)
    if x.T == 1 and x.initial_state is not None and not torch.is_grad_enabled():
        x.initial_state.copy_(final)
    return o, final


RIGHT = port(lambda x, _: right(x))
