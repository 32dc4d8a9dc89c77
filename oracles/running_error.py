"""The float64 recurrence with a proven radius: inexpensive truth for kernels that round to 16 bits.

Every transition of KDA has 2-norm L_t = max(1, |1 - beta |k|^2|) * max alpha, so an error of the
state before token t grows by at most L_t, and what token t itself adds is bounded by the standard
model of float64 arithmetic from norms of computed values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.tokens import Tensors, Tokens

UNIT = 2.0**-53
# Absorbs second-order terms and the rounding of the bound's own float64 evaluation.
SAFETY = 1.05
# exp of float64: the vectorised and the scalar libraries both promise 1 ulp.
EXP_UNITS = 4.0
# Below this, products may be subnormal and lose their relative accuracy.
TINY = 1e-300


def enclosed(inputs: Inputs) -> CertifiedOutputs:
    """Float64 token recurrence and a rigorous radius for every element.

    Math: section 2. With r_t a bound of |S_t computed - S_t exact|_F and s = |S~_t|_F:
        r_t = L_t r_{t-1} + u (10 s + (K + 12) beta |k|^2 s + 6 beta |k| |v| + 2 |S_t|_F)
        |o_v| error <= scale (|q| r_t + (K + 4) u |q| |S_t[:, v]|)

    Returns:
        Answer whose radius of final_state is r_T on every element, and whose `zero` marks
        structurally zero elements.
    """
    if not any(inputs.lengths):
        return CertifiedOutputs(
            exact(torch.zeros_like(inputs.v)), exact(inputs.state), "inputs, exact"
        )
    carry = (inputs.state.double(), inputs.g.new_zeros(inputs.N, inputs.HV, dtype=torch.float64))
    factor = inputs.factor

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        before, r = carry
        decayed = before * x.g.exp().transpose(-1, -2)
        u = x.beta[..., None] * (x.v - x.k @ decayed)
        after = decayed + x.k.transpose(-1, -2) * u
        sizes = sizes_of(x)
        r = grow(r, sizes) + local(sizes, decayed, after)
        columns = vector_norm(after, dim=-2, keepdim=True)
        return (after, r), (factor * (x.q @ after), r[..., None, None], columns)

    (final, r), (o, state_errors, columns) = scan(
        inputs, 1, carry, step, dtype=torch.float64, others=(token_sizes(inputs),)
    )
    q_norm = over_value_heads(inputs, vector_norm(inputs.q.double(), dim=-1, keepdim=True))
    spread = q_norm * state_errors + UNIT * (inputs.K + 4) * q_norm * columns
    radius = SAFETY * abs(factor) * spread + TINY
    state_radius = (r + TINY)[..., None, None].expand_as(final)
    o_zero, state_zero = structural_zeros(inputs, o, final)
    return CertifiedOutputs(
        enclose(o, radius, o_zero),
        enclose(final, state_radius, state_zero),
        "float64 recurrence, proven radius",
    )


class TokenSizes(NamedTuple):
    """What the bounds of a token are made of: see `token_sizes`; each [n, HV]."""

    decay: Tensor
    reflection: Tensor
    write: Tensor
    read: Tensor
    value: Tensor


def token_sizes(inputs: Inputs) -> Tensor:
    """[B, T, HV, 5] of every token: its largest decay, |1 - beta |k|^2| where that is above 1, beta
    |k|, (K + 12) |k| and 6 |v|. Of all tokens at once: by token they took a third of a walk.
    """
    k, v = (vector_norm(x.double(), dim=-1) for x in (inputs.k, inputs.v))
    k, beta = over_value_heads(inputs, k), inputs.beta.double()
    reflection = (1 - beta * k.square()).abs().clamp(min=1.0)
    decay = inputs.decays.double().exp().amax(-1)
    return torch.stack((decay, reflection, beta * k, (inputs.K + 8 + EXP_UNITS) * k, 6 * v), dim=-1)


def over_value_heads(inputs: Inputs, of_keys: Tensor) -> Tensor:
    """What a key head has [B, T, H, ...], for each of its value heads."""
    return of_keys.repeat_interleave(inputs.HV // inputs.H, dim=2)


def sizes_of(x: Tokens) -> TokenSizes:
    """Those of a token that is walked with them, the last of what it has besides."""
    return TokenSizes(*x.others[-1].squeeze(2).unbind(-1))


def grow(r: Tensor, sizes: TokenSizes) -> Tensor:
    """What an error of the state may become after a token: L_t r, also for the transpose."""
    return r * sizes.reflection * sizes.decay * (1 + 64 * UNIT)


def local(sizes: TokenSizes, decayed: Tensor, after: Tensor) -> Tensor:
    """What a token's own roundings add, in float64."""
    s = vector_norm(decayed, dim=(-2, -1))
    terms = (6 + EXP_UNITS) * s + sizes.write * (sizes.read * s + sizes.value)
    return SAFETY * UNIT * (terms + 2 * vector_norm(after, dim=(-2, -1))) + TINY


def enclose(value: Tensor, radius: Tensor, zero: Tensor) -> Enclosure:
    """A float64 value with its radius; proven zeros have none."""
    return Enclosure(value, torch.zeros_like(value), radius.masked_fill(zero, 0.0), zero)


def exact(value: Tensor) -> Enclosure:
    """A value that is the truth."""
    value = value.double()
    return Enclosure(value, torch.zeros_like(value), torch.zeros_like(value), value == 0)


def structural_zeros(inputs: Inputs, o: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """Elements that are 0 because every term is 0, not because terms cancel or underflow.

    Math: the same recurrence over the supports of its operands: with 0/1 entries and additions
    only, a 0 is a proof.

    Args:
        o, final: the outputs as computed; only their zeros are used.
    Returns:
        Masks of o and final.
    """
    if not any(inputs.lengths):
        # Nothing was computed: the outputs are the initial states, and zeros in the padding.
        return o == 0, final == 0
    if bool((o != 0).all()) and bool((final != 0).all()):
        return torch.zeros_like(o, dtype=torch.bool), torch.zeros_like(final, dtype=torch.bool)

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        (support,) = carry
        q, k, v, beta = ((t != 0).float() for t in (x.q, x.k, x.v, x.beta))
        kept = support * x.g.isfinite().transpose(-1, -2)
        u = beta[..., None] * (v + k @ kept)
        support = (kept + k.transpose(-1, -2) * u).clamp(max=1.0)
        return (support,), (q @ support,)

    (support,), (o_support,) = scan(
        inputs, 1, ((inputs.state != 0).float(),), step, dtype=torch.float64
    )
    return (o_support == 0) & (o == 0), (support == 0) & (final == 0)
