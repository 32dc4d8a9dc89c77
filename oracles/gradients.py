"""What enters a backward and comes out: the outputs' cotangents, the inputs' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic, is_finite
from oracles.enclosure import Enclosure
from oracles.inputs import InputError, Inputs
from oracles.scan import scan
from oracles.tensors import GRADIENTS, SIGNATURE
from oracles.tokens import Tensors, Tokens

X = TypeVar("X")


@dataclass(frozen=True)
class Cotangents:
    """Gradients of a loss with respect to the outputs of one call; an absent one is 0.

    Math: section 5.

    Args:
        do: [B, T, HV, V]; rows past the last offset of a pack are never read.
        d_final_state: [N, HV, K, V].
    """

    do: Tensor | None = None
    d_final_state: Tensor | None = None

    def of(self, inputs: Inputs, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        """Both as tensors, zeros where absent.

        Raises:
            InputError: one has another shape than the output of `inputs` it belongs to, or is not
                finite; or both are absent.
        """
        if self.do is None and self.d_final_state is None:
            raise InputError(
                "do, d_final_state: wanted at least one cotangent, got none; without one every"
                " gradient is 0"
            )
        do, d_final_state = (
            _checked(name, getattr(self, name), SIGNATURE.shape(name, inputs), inputs.v.device)
            for name in SIGNATURE.cotangents
        )
        return do.to(dtype), d_final_state.to(dtype)

    def by_output(self) -> dict[str, Tensor]:
        """Those that are given, by the name of the output."""
        named = {output: getattr(self, name) for name, output in SIGNATURE.cotangents.items()}
        return {output: dy for output, dy in named.items() if dy is not None}

    def on(self, device: torch.device | str) -> Cotangents:
        """The same on another device."""
        return Cotangents(
            *(
                None if tensor is None else tensor.to(device)
                for tensor in (self.do, self.d_final_state)
            )
        )


def combined(given: Sequence[Cotangents], factors: Sequence[float]) -> Cotangents:
    """The sum of cotangents times factors, in their own types; absent ones are the same."""

    def total(tensors: list[Tensor | None]) -> Tensor | None:
        terms = [factor * x for factor, x in zip(factors, tensors, strict=True) if x is not None]
        return torch.stack(terms).sum(0) if terms else None

    return Cotangents(total([x.do for x in given]), total([x.d_final_state for x in given]))


def _checked(
    name: str, tensor: Tensor | None, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    if tensor is None:
        return torch.zeros(shape, device=device)
    if tensor.shape != shape:
        raise InputError(
            f"{name}: wanted shape {list(shape)}, that of its output, got {list(tensor.shape)}"
        )
    if not tensor.is_floating_point():
        raise InputError(f"{name}: wanted a floating-point tensor, got {tensor.dtype}")
    if not is_finite(tensor):
        raise InputError(
            f"{name}: wanted finite values, got {int((~torch.isfinite(tensor)).sum())} others; rows"
            " no one reads are zero"
        )
    return tensor


@dataclass(frozen=True)
class Gradients(Generic[X]):
    """One thing for each input of a call: its gradient, an enclosure or a tolerance of it.

    Args:
        dq, dk: [B, T, H, K], summed over the value heads that share a key head.
        dv: [B, T, HV, V]; dg: [B, T, HV, KG], summed over the channels that share a gate; dbeta:
            [B, T, HV].
        d_initial_state: [N, HV, K, V], whether or not the call had an initial state.
    """

    dq: X
    dk: X
    dv: X
    dg: X
    dbeta: X
    d_initial_state: X

    def named(self) -> dict[str, X]:
        """By name, in the order of GRADIENTS."""
        return {name: getattr(self, name) for name in GRADIENTS}


@dataclass(frozen=True)
class Terms:
    """How large the terms are that meet in a gradient: what roundings are relative to.

    Args:
        dg: [B, T, HV, KG], rowsum |P~ * S~| + |q dq| + |k (P u)| + |beta k (S~ p)| of a token. A
            kernel that sums dg over suffixes of a chunk rounds at the scale of the largest such sum
            from there to the chunk's end: see `largest_ahead`.
        d_initial_state: [N, HV, K, V], the largest |P| + |beta k p^T| of any token, decayed from
            there to the start. Where tokens erase the state the two cancel, and a chunk form that
            adds them at the chunk's start rounds at that scale.
    """

    dg: Tensor
    d_initial_state: Tensor


@dataclass(frozen=True)
class GradientAnswer:
    """The exact gradients of one call, enclosed.

    Args:
        gradients: their enclosures; rows past the last offset of a pack are zero and proven so.
        terms: the sizes of the terms that meet in them, in float64, not certified.
        method: how they were computed, for the record.
    """

    gradients: Gradients[Enclosure]
    terms: Terms
    method: str

    def named(self) -> dict[str, Enclosure]:
        return self.gradients.named()


def zero_gradients(inputs: Inputs, d_initial_state: Tensor) -> Gradients[Tensor]:
    """The gradients where no sequence has a token: the final state is the initial one."""
    like = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta)
    dq, dk, dv, dg, dbeta = (torch.zeros_like(x, dtype=d_initial_state.dtype) for x in like)
    return Gradients(dq, dk, dv, dg, dbeta, d_initial_state)


def over_key_heads(
    inputs: Inputs, per_value_head: Tensor, arithmetic: Arithmetic = NATIVE
) -> Tensor:
    """[B, T, HV, ...] summed over the value heads of each key head: [B, T, H, ...]."""
    groups = per_value_head.unflatten(2, (inputs.H, inputs.HV // inputs.H))
    return arithmetic.over_heads(groups)


def over_channels(inputs: Inputs, per_channel: Tensor) -> Tensor:
    """[B, T, HV, K] summed over the key channels that share a gate: [B, T, HV, KG]."""
    if inputs.KG == inputs.K:
        return per_channel
    return per_channel.sum(-1, keepdim=True)[..., : inputs.KG]


def scales(gradients: Gradients[Tensor], terms: Terms) -> dict[str, float]:
    """What differences of each gradient are relative to: its largest element, or term."""
    sizes = {**gradients.named(), **vars(terms)}
    return {name: float(x.abs().max()) if x.numel() else 0.0 for name, x in sizes.items()}


def largest_ahead(inputs: Inputs, terms: Tensor, chunk_size: int) -> Tensor:
    """The largest of `terms` [B, T, HV, KG] to the chunk's end: the scale of suffix sums."""

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        return carry, (tokens.others[0].flip(-2).cummax(-2).values.flip(-2),)

    if not any(inputs.lengths):
        return torch.zeros_like(terms)
    return scan(inputs, chunk_size, (inputs.state,), body, dtype=terms.dtype, others=(terms,))[1][0]
