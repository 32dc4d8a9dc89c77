"""How kernels want their tensors, and the way there and back from the canonical call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.convention_checks import check_conventions, check_value
from oracles.codecs import BETAS, IDENTITY, Codec
from oracles.gate_activation import (
    FORMS,
    LOWER_BOUND,
    PARAMETERS,
    A_log_of,
    GateActivation,
    dt_bias_of,
    gate_codec,
)
from oracles.inputs import Inputs
from oracles.row_norm import EPSILON, GIVEN, POWERS, RowNorm
from oracles.tensors import FLOATING, SIGNATURE, TOKENS

CONVERTED: Final = ("q", "k", "g", "beta")
"""The inputs whose values a convention may change."""
OUTSIDE: Final = -1
"""Segment id of the tokens past the last offset of a pack."""
_VIEWS: Final = ContextVar("views", default=False)


@contextmanager
def views_as_they_lie() -> Generator[None]:
    """Within it a kernel of other axes gets no dense copies: how the caller's tensors lie is what
    is tested. Strides of kernels in bhtd, thd and of states in vk were never tested before.
    """
    before = _VIEWS.set(True)
    try:
        yield
    finally:
        _VIEWS.reset(before)


@dataclass(frozen=True)
class AxesOrder:
    """One tensor's layout, there and back: a permutation, exact and linear."""

    to: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]

    def then(self, other: AxesOrder) -> AxesOrder:
        """Both, one after the other."""
        if AS_THEY_ARE in (self, other):
            return self if other is AS_THEY_ARE else other
        return AxesOrder(lambda x: other.to(self.to(x)), lambda x: self.back(other.back(x)))


def _same(x: Tensor) -> Tensor:
    return x


AS_THEY_ARE: Final = AxesOrder(_same, _same)


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """The conventions of one kernel.

    Args:
        layout: bthd [B, T, H, D]; bhtd [B, H, T, D]; thd [B T, H, D] with cu_seqlens always given.
        state: kv [N, HV, K, V]; vk [N, HV, V, K].
        gate: log (natural); log2 (g / ln 2); decay (exp g); softplus or bounded: activated in the
            kernel, which gets x (see `GateActivation`).
        gates: channel, g [B, T, HV, K]; head, g [B, T, HV], for all channels; none, no g at all.
        heads: which key head value head j reads: interleaved, j // (HV / H); tiled, j mod H.
        beta: value; logit (beta = sigmoid of it; 0 and 1 are -inf and inf).
        packing: cu_seqlens [N + 1]; segment_ids [1, T], the id of a token's sequence, -1 past the
            last offset; none. Ids are at least 0, different in different sequences, and in any
            order. A kernel that sees segment_ids cannot see empty sequences, so packs take and give
            no state through it.
        scale: argument (passed); fixed (the kernel always takes K^-1/2); folded (q comes
            multiplied, and rounded to its dtype).
        padding: what rows of o past a pack's last offset hold: zero, or undefined (not compared).
        gate_format: of x, where the kernel activates it: fp32 (fp64 beside fp64), or that of q.
        gate_parameters: of an activation those that the kernel gets, by keyword: A_log [HV] and
            dt_bias [HV, K], or [HV] where the channels of a head share a gate. Those that it does
            not get are 0.
        lower_bound: of the bounded activation.
        qk: given; l2norm, where the kernel normalises the rows of q and k itself (see `RowNorm`);
            l2norm-stored, where it stores them in their own format before it goes on.
        norm_eps: epsilon of that.
        row_powers: what rows that it normalises are multiplied by: see `RowNorm`; no kernel
            declares it.
    Raises:
        ConventionError: a value that does not exist, thd without cu_seqlens, an activation of no
            gate, or q that is multiplied before it is normalised.
    """

    layout: str = "bthd"
    state: str = "kv"
    gate: str = "log"
    gates: str = "channel"
    heads: str = "interleaved"
    beta: str = "value"
    packing: str = "none"
    scale: str = "argument"
    padding: str = "zero"
    gate_format: str = "fp32"
    gate_parameters: str = "none"
    lower_bound: float = LOWER_BOUND
    qk: str = GIVEN
    norm_eps: float = EPSILON
    row_powers: tuple[int, ...] = POWERS

    def __post_init__(self) -> None:
        check_conventions(self)

    @property
    def norm(self) -> RowNorm | None:
        """The normalisation of q and k in the kernel, if there is one."""
        if self.qk == GIVEN:
            return None
        return RowNorm(self.norm_eps, self.qk == "l2norm-stored", self.row_powers)

    @property
    def rows_form(self) -> str:
        """What contracts call the convention of q and k."""
        return GIVEN if self.norm is None else self.norm.name

    @property
    def activation(self) -> GateActivation | None:
        """The activation of the gate in the kernel, if there is one."""
        parameters = tuple(name for name in PARAMETERS if name in self._named_parameters)
        return next(
            (
                GateActivation(form, self.lower_bound, parameters, self.gate_format == "inputs")
                for form in FORMS
                if form == self.gate
            ),
            None,
        )

    @property
    def gate_form(self) -> str:
        """What contracts call the convention of the gate."""
        return self.gate if self.activation is None else self.activation.name

    @property
    def _named_parameters(self) -> list[str]:
        return self.gate_parameters.split("+")

    def arguments(self, inputs: Inputs, *, views: bool = False) -> dict[str, Any]:
        """What the kernel gets: q, k, v, g, beta, scale, initial_state, cu_seqlens, segment_ids
        (the last three, and g, may be None), and the parameters of its gate.

        A tensor that needs no conversion is handed over itself, any other as memory of its own.

        Args:
            views: whether tensors are handed over as they lie, within `views_as_they_lie` alone.
        Raises:
            ConventionError: a beta above 1 as a logit.
        """
        memories: Memories | None = {} if views and _VIEWS.get() else None
        arguments: dict[str, Any] = {name: self._handed(name, inputs, memories) for name in TOKENS}
        arguments["scale"] = inputs.factor
        arguments["initial_state"] = (
            None
            if inputs.initial_state is None
            else self.hand("initial_state", inputs.initial_state, inputs, memories)
        )
        arguments["cu_seqlens"] = self._offsets(inputs)
        arguments["segment_ids"] = segment_ids(inputs) if self.packing == "segment_ids" else None
        return arguments | self._parameters(inputs)

    def _parameters(self, inputs: Inputs) -> dict[str, Tensor | float]:
        """A_log and dt_bias as the kernel numbers its heads."""
        if self.gate_parameters == "none" and self.gate not in FORMS:
            return {}
        device, channels = inputs.g.device, inputs.g.shape[-1]
        found = {
            "A_log": A_log_of(inputs.HV, device),
            "dt_bias": dt_bias_of(inputs.HV, channels, device),
        }
        groups, shared = inputs.H, inputs.HV // inputs.H
        if self.heads == "tiled":
            found = {name: _regrouped(x, 0, (groups, shared)) for name, x in found.items()}
        if self.gates == "head":
            found["dt_bias"] = found["dt_bias"].squeeze(-1)
        return {**found, "lower_bound": self.lower_bound}

    def parameter_back(self, name: str, tensor: Tensor, inputs: Inputs) -> Tensor:
        """A_log [HV], or dt_bias [HV, K], of the kernel, or its gradient, with canonical heads."""
        if self.heads == "tiled":
            tensor = _regrouped(tensor, 0, (inputs.HV // inputs.H, inputs.H))
        return tensor[:, None] if name == "dt_bias" and self.gates == "head" else tensor

    def hand(
        self, name: str, tensor: Tensor, inputs: Inputs, memories: Memories | None = None
    ) -> Tensor:
        """The tensor `name` as the kernel wants it: computed in float64, rounded once, then axes.

        Args:
            memories: of converted values, which are laid out as the caller's; then a tensor of
                which only the axes differ is handed over as it lies. None: all are dense.
        """
        codec, axes = self._values(name), self._axes(name, inputs)
        if codec.converts:
            found = self._converted(name, tensor, inputs)
            tensor = found if memories is None else laid_like(tensor, found, memories)
        if axes.to is _same or memories is not None:
            return axes.to(tensor)
        return axes.to(tensor).contiguous()

    def _handed(self, name: str, inputs: Inputs, memories: Memories | None) -> Tensor | None:
        if name == "g" and self.gates == "none":
            return None
        return self.hand(name, getattr(inputs, name), inputs, memories)

    def take(self, name: str, tensor: Tensor, inputs: Inputs) -> Tensor:
        """The inverse of `hand`; also for outputs: "o" as v, "final_state" as initial_state."""
        codec, tensor = self._values(name), self.in_canonical_axes(name, tensor, inputs)
        return _round(codec.back(tensor.double()), tensor.dtype) if codec.converts else tensor

    def in_canonical_axes(self, name: str, tensor: Tensor, inputs: Inputs) -> Tensor:
        """A tensor of the kernel, or its gradient, in the axes of `Inputs`; values unchanged."""
        return self._axes(name, inputs).back(tensor)

    def received(self, inputs: Inputs) -> Inputs:
        """The call as the kernel gets it: gates, betas and rows as converted, in float64."""
        rounded = {
            name: codec.back(self._converted(name, getattr(inputs, name), inputs).double())
            for name in CONVERTED
            if (codec := self._values(name)).converts
        }
        return replace(inputs, **rounded) if rounded else inputs

    def converted(self) -> tuple[str, ...]:
        """The inputs of which the kernel gets a converted copy."""
        tokens = TOKENS if self.layout in ("bhtd", "thd") else ()
        state = ("initial_state",) if self.state == "vk" else ()
        return tuple(dict.fromkeys((*tokens, *state, *self.recomputed())))

    def regroups(self, inputs: Inputs) -> bool:
        """Whether the heads of a call lie in another order before the kernel."""
        return self.heads == "tiled" and 1 not in (inputs.H, inputs.HV // inputs.H)

    def recomputed(self) -> tuple[str, ...]:
        """Those that are always copies: the kernel gets other values, or heads in another order."""
        values = [name for name in CONVERTED if self._values(name).converts]
        return tuple(dict.fromkeys((*values, *self._dense(regrouped=self.heads == "tiled"))))

    def densely(self, inputs: Inputs) -> tuple[str, ...]:
        """Of those, the ones that are dense in a call on views, within `views_as_they_lie`."""
        return self._dense(regrouped=self.regroups(inputs))

    def _dense(self, *, regrouped: bool) -> tuple[str, ...]:
        heads = [name for name in FLOATING if regrouped and "HV" in SIGNATURE[name].axes]
        offsets = ("cu_seqlens",) if self.packing == "segment_ids" else ()
        folded = ("q",) if self.scale == "folded" else ()
        return (*heads, *offsets, *folded)

    def lying(self, name: str) -> AxesOrder:
        """From canonical axes to the order of axes in which the tensor lies before the kernel, and
        back; without the loss of the batch axis in thd, which a pack has once.
        """
        return self._order(name).then(self._shared(name)) if name in FLOATING else AS_THEY_ARE

    def _converted(self, name: str, tensor: Tensor, inputs: Inputs) -> Tensor:
        """The values of a tensor as the kernel wants them, in the type in which it wants them."""
        dtype = inputs.q.dtype if name == "g" and self.gate_format == "inputs" else tensor.dtype
        return _round(self._values(name).there(check_value(name, tensor).double()), dtype)

    def _values(self, name: str) -> Codec:
        if name == "g":
            return gate_codec(self.gate_form)
        if name in ("q", "k") and self.norm is not None:
            return self.norm.codec
        return BETAS[self.beta] if name == "beta" else IDENTITY

    def _axes(self, name: str, inputs: Inputs) -> AxesOrder:
        return (
            self._grouping(name, inputs).then(self._layout(name, inputs)).then(self._shared(name))
        )

    def _grouping(self, name: str, inputs: Inputs) -> AxesOrder:
        axes, H, shared = SIGNATURE[name].axes, inputs.H, inputs.HV // inputs.H
        if "HV" not in axes or not self.regroups(inputs):
            return AS_THEY_ARE
        at = axes.index("HV")
        return AxesOrder(
            lambda x: _regrouped(x, at, (H, shared)), lambda x: _regrouped(x, at, (shared, H))
        )

    def _shared(self, name: str) -> AxesOrder:
        """A gate of all channels has no axis of them; in our memory still, as one that has."""
        if name == "g" and self.gates == "head":
            return AxesOrder(lambda x: x.squeeze(-1), lambda x: x.unsqueeze(-1))
        return AS_THEY_ARE

    def _layout(self, name: str, inputs: Inputs) -> AxesOrder:
        if self.layout == "thd" and not SIGNATURE.is_state(name):
            return AxesOrder(_flat, lambda x: x.reshape(inputs.B, inputs.T, *x.shape[1:]))
        return self._order(name)

    def _order(self, name: str) -> AxesOrder:
        """Which axes lie the other way round: those of a state, or tokens and heads."""
        if SIGNATURE.is_state(name):
            return AxesOrder(_swap_widths, _swap_widths) if self.state == "vk" else AS_THEY_ARE
        return AxesOrder(_swap_heads, _swap_heads) if self.layout == "bhtd" else AS_THEY_ARE

    def _offsets(self, inputs: Inputs) -> Tensor | None:
        if self.packing != "cu_seqlens":
            return None
        if self.layout == "thd" and inputs.cu_seqlens is None:
            return torch.arange(inputs.B + 1, dtype=torch.int32, device=inputs.q.device) * inputs.T
        return inputs.cu_seqlens


CANONICAL: Final = Conventions(packing="cu_seqlens")


def segment_ids(inputs: Inputs) -> Tensor | None:
    """[1, T] int32: every token's sequence in a pack, `OUTSIDE` past the end; None unpacked."""
    if inputs.cu_seqlens is None:
        return None
    ids = torch.full((1, inputs.T), OUTSIDE, dtype=torch.int32)
    used = sum(inputs.lengths)
    ids[0, :used] = torch.repeat_interleave(
        _ids_of_sequences(inputs), torch.as_tensor(inputs.lengths)
    )
    return ids.to(inputs.q.device)


def _ids_of_sequences(inputs: Inputs) -> Tensor:
    given = inputs.sequence_ids
    return (
        torch.arange(inputs.N, dtype=torch.int32) if given is None else given.to("cpu", torch.int32)
    )


def _regrouped(x: Tensor, at: int, groups: tuple[int, int]) -> Tensor:
    """The heads of an axis, numbered by their place in the groups instead of group by group."""
    return x.unflatten(at, groups).transpose(at, at + 1).flatten(at, at + 1)


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _swap_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _swap_widths(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def _round(x: Tensor, dtype: torch.dtype) -> Tensor:
    # float64 to 16 bits is one rounding on some processors and two on others: always go through
    # float32.
    return x if dtype == torch.float64 else x.to(torch.float32).to(dtype)


LARGEST: Final = 2**30
"""Bytes: memory of this extent, most of it never touched, is not made a second time."""
Memories = dict[tuple[int, torch.dtype], Tensor]
"""By the address of the caller's memory that each stands for."""


def laid_like(like: Tensor, values: Tensor, memories: Memories) -> Tensor:
    """The values with the strides and the offset of `like`, in memory of their own that holds NaN
    wherever no element is; as they are where that would take too much of it.

    Args:
        memories: of the tensors of this call so far: those that share memory still do.
    """
    room = like.untyped_storage().nbytes()
    if room > LARGEST or not like.is_floating_point():
        return values
    key = (like.untyped_storage().data_ptr(), values.dtype)
    if key not in memories:
        memories[key] = torch.full(
            (room // like.itemsize,), float("nan"), dtype=values.dtype, device=values.device
        )
    memory = memories[key]
    laid = memory.as_strided(like.shape, like.stride(), like.storage_offset())
    # One element of memory is written once, however often it is read.
    once = tuple(slice(None) if stride else slice(1) for stride in like.stride())
    laid[once].copy_(values[once])
    return laid
