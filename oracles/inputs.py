"""The delta rule's inputs, checked once: Kimi Delta Attention, Gated DeltaNet, DeltaNet.

Axis letters (math.md 1): B batch, T tokens, N sequences, H key heads, HV value heads, K key width,
V value width,
KG gates of a value head: K (KDA), 1 for all channels (Gated DeltaNet), 0 where nothing decays
(DeltaNet).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from oracles.arithmetic import is_finite
from oracles.signature import Role, TensorCall
from oracles.tensors import FLOATING, SIGNATURE, TOKENS


class InputError(ValueError):
    """An input that cannot be judged; the message names the tensor, what came, what to do."""


@dataclass(frozen=True)
class Inputs(TensorCall):
    """One call of the delta rule: every tensor a kernel receives, in the canonical conventions.

    Math: section 2; S_t = (I - beta_t k_t k_t^T) Diag(exp g_t) S_{t-1} + beta_t k_t v_t^T, o_t =
    scale S_t^T q_t.

    Args:
        q, k: [B, T, H, K] queries and keys.
        v: [B, T, HV, V] values; value head j reads key head j // (HV / H).
        g: [B, T, HV, KG] natural-log decay, <= 0; -inf is a hard reset of the channels that it
            gates.
        beta: [B, T, HV] write strength in [0, 2].
        scale: factor of the output; None means K^-1/2.
        initial_state: [N, HV, K, V], or None for zeros.
        cu_seqlens: [N + 1] integer offsets of packed sequences (B must be 1), or None. Tokens past
            the last one are padding: any values.
        sequence_ids: [N] integers, all different: the id of every packed sequence for kernels that
            take segment ids; None means 0 to N - 1. A name alone, no result depends on it.
    Raises:
        InputError: a shape, dtype, offset or value is not what this says.
    """

    op: ClassVar = "kda"
    signature: ClassVar = SIGNATURE

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    scale: float | None = None
    initial_state: Tensor | None = None
    cu_seqlens: Tensor | None = None
    sequence_ids: Tensor | None = None

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_values(self)

    @property
    def factor(self) -> float:
        """The scale of the output, K^-1/2 where none was given."""
        return self.K**-0.5 if self.scale is None else self.scale

    @property
    def B(self) -> int:
        return self.q.shape[0]

    @property
    def T(self) -> int:
        return self.q.shape[1]

    @property
    def H(self) -> int:
        return self.q.shape[2]

    @property
    def HV(self) -> int:
        return self.v.shape[2]

    @property
    def K(self) -> int:
        return self.q.shape[3]

    @property
    def V(self) -> int:
        return self.v.shape[3]

    @property
    def KG(self) -> int:
        return self.g.shape[3]

    @property
    def N(self) -> int:
        return self.B if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def starts(self) -> list[int]:
        """First row of every sequence in the [B * T] token axis."""
        if self.cu_seqlens is None:
            return [b * self.T for b in range(self.B)]
        return self.cu_seqlens.tolist()[:-1]

    @property
    def lengths(self) -> list[int]:
        """Tokens of every sequence; a packed sequence may have none."""
        if self.cu_seqlens is None:
            return [self.T] * self.B
        return torch.diff(self.cu_seqlens).tolist()

    @property
    def state(self) -> Tensor:
        """S_0 [N, HV, K, V], zeros where absent, in the dtype of the gates."""
        if self.initial_state is not None:
            return self.initial_state
        return self.g.new_zeros(self.N, self.HV, self.K, self.V)

    @property
    def decays(self) -> Tensor:
        """The log decay of every key channel [B, T, HV, K]: its own, its head's, or 0."""
        if self.KG:
            return self.g.expand(*self.g.shape[:3], self.K)
        return self.g.new_zeros(*self.g.shape[:3], self.K)

    def span(self, first: int, end: int, initial_state: Tensor | None) -> Inputs:
        """The call on tokens [first, end), as dense sequences that start from `initial_state`."""
        cut = SIGNATURE.changed(self, lambda tensor: tensor[:, first:end].contiguous(), Role.TOKEN)
        return replace(self, **cut, initial_state=initial_state, cu_seqlens=None, sequence_ids=None)

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same call with every floating tensor cast to `dtype` (exact when widening)."""
        return self.mapped(lambda tensor: tensor.to(dtype), Role.TOKEN, Role.STATE)


def _check_shapes(x: Inputs) -> None:
    for name in FLOATING:
        tensor = getattr(x, name)
        if tensor is None and SIGNATURE[name].optional:
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(
                f"{name}: wanted a floating-point torch tensor, got {kind}; convert it with"
                " torch.as_tensor(...)"
            )
    if x.q.ndim != 4 or x.v.ndim != 4:
        raise InputError(
            f"q, v: wanted [B, T, H, K] and [B, T, HV, V], got {list(x.q.shape)} and"
            f" {list(x.v.shape)}; add the missing axes"
        )
    if x.g.ndim != 4 or x.KG not in (0, 1, x.K):
        said = (
            f"wanted [B, T, HV, K], or K gates of a head replaced by 1 or 0, got {list(x.g.shape)}"
        )
        raise InputError(f"g: {said}; K is {x.K}, that of q {list(x.q.shape)}")
    for name in TOKENS:
        shape, got = SIGNATURE.shape(name, x), tuple(getattr(x, name).shape)
        if got != shape:
            raise InputError(
                f"{name}: wanted shape {list(shape)} (from q {list(x.q.shape)} and v"
                f" {list(x.v.shape)}), got {list(got)}"
            )
    if x.H == 0 or x.HV % x.H:
        raise InputError(
            f"v: {x.HV} value heads must be a multiple of the {x.H} key heads of q; repeat or"
            " regroup the heads"
        )
    _check_offsets(x)
    wanted = SIGNATURE.shape("initial_state", x)
    if x.initial_state is not None and tuple(x.initial_state.shape) != wanted:
        raise InputError(
            f"initial_state: wanted shape {list(wanted)} ([N, HV, K, V]), got"
            f" {list(x.initial_state.shape)}"
        )


def _check_offsets(x: Inputs) -> None:
    offsets, ids = x.cu_seqlens, x.sequence_ids
    if ids is not None and (
        offsets is None or ids.is_floating_point() or ids.shape != (x.N,) or len(ids.unique()) < x.N
    ):
        raise InputError(
            f"sequence_ids: wanted {x.N} different integers beside cu_seqlens, got {ids.tolist()}"
        )
    if offsets is None:
        return
    if offsets.is_floating_point() or offsets.ndim != 1 or len(offsets) < 2:
        raise InputError(
            f"cu_seqlens: wanted a 1-d integer tensor of N + 1 >= 2 offsets, got {offsets.dtype}"
            f" {list(offsets.shape)}"
        )
    if x.B != 1:
        raise InputError(
            f"q: packed sequences need B = 1, got B = {x.B}; concatenate the sequences along T"
        )
    values = offsets.tolist()
    if values[0] != 0 or any(b < a for a, b in pairwise(values)):
        raise InputError(f"cu_seqlens: wanted offsets that start at 0 and never fall, got {values}")
    if values[-1] > x.T:
        raise InputError(
            f"cu_seqlens: the last offset {values[-1]} lies past the {x.T} tokens of q; shorten it"
            " or pass more tokens"
        )


def _check_values(x: Inputs) -> None:
    """Of the tokens of sequences; what lies past the last offset is no value."""
    used = x.T if x.cu_seqlens is None else int(x.cu_seqlens[-1])
    for name in ("q", "k", "v", "beta", "initial_state"):
        tensor = getattr(x, name)
        counts = tensor if tensor is None or name == "initial_state" else tensor[:, :used]
        if counts is not None and not is_finite(counts):
            raise InputError(
                f"{name}: wanted finite values, got {_first(counts, ~torch.isfinite(counts))}"
            )
    g, beta = x.g[:, :used], x.beta[:, :used]
    if not bool((g <= 0).all()):
        bad = ~(g <= 0)
        raise InputError(
            f"g: wanted log decays <= 0 (-inf allowed), got {_first(g, bad)}; pass log(alpha), not"
            " alpha"
        )
    bad = (beta < 0) | (beta > 2)
    if bool(bad.any()):
        raise InputError(
            f"beta: wanted values in [0, 2], got {_first(beta, bad)}; pass sigmoid(logit), not the"
            " logit"
        )


def _first(tensor: Tensor, mask: Tensor) -> str:
    where = tuple(int(i) for i in mask.nonzero()[0])
    return f"{tensor[where].item()} at index {list(where)} ({int(mask.sum())} such)"
