"""What passes between harness and a converting kernel: nothing that it does is hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.isolation.fault import CallFailure
from kdaverify.adapters.placement import shares_memory
from oracles.gate_activation import PARAMETERS
from oracles.inputs import Inputs
from oracles.tensors import FLOATING, SIGNATURE


def fold_scale(inputs: Inputs) -> Inputs:
    """The same call for a kernel without scale: q comes multiplied, rounded to its dtype."""
    q = (inputs.q.to(torch.promote_types(inputs.q.dtype, torch.float32)) * inputs.factor).to(
        inputs.q.dtype
    )
    return replace(inputs, q=q, scale=1.0)


def clear_padding(o: Tensor, inputs: Inputs) -> Tensor:
    """o with zeros past the last offset of a pack, for interfaces that leave it undefined."""
    # Nothing to clear: what differentiates o hands its cotangent over as it lies.
    if inputs.cu_seqlens is None or sum(inputs.lengths) == o.shape[1]:
        return o
    valid = torch.arange(o.shape[1], device=o.device) < sum(inputs.lengths)
    return o.masked_fill(~valid[None, :, None, None], 0.0)


@dataclass(frozen=True)
class Handover:
    """One call, before and after conversion; made before the kernel runs.

    Args:
        conventions: of the kernel.
        inputs: the caller's call.
        handed: the arguments the kernel gets; those converted have memory of their own.
        padding_undefined: what the kernel returns past the last offset of a pack means nothing.
    """

    conventions: Conventions
    inputs: Inputs
    handed: Mapping[str, Any]
    padding_undefined: bool = False
    _kept: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])
    _parameters: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        self._parameters.update(
            {name: self.handed[name].clone() for name in PARAMETERS if name in self.handed}
        )
        for name in FLOATING:
            own, given = self.handed[name], getattr(self.inputs, name)
            # What the kernel gets in place of nothing, such as a state of zeros, is nobody's to
            # keep.
            if own is not None and given is not None and not shares_memory(own, given):
                self._kept[name] = own.clone()

    def output(self, o: Any, final_state: Any) -> Output:
        """What the kernel returned, in canonical conventions; junk passes through untouched.

        An input that the kernel edited in its own memory is edited in `inputs` too, and an output
        that is one of the kernel's
        inputs becomes that input of the caller: there the harness looks for both.
        """
        self.show_edits()
        return Output(
            self._unless_aliased("o", o), self._unless_aliased("final_state", final_state)
        )

    @torch.no_grad()
    def show_edits(self) -> None:
        """Edits in `inputs` what the kernel edited in its own copies.

        Element by element: NaN is no edit of NaN, and a round trip through the conversion would
        change what the kernel left alone.

        Raises:
            CallFailure: it edited a parameter of its gate, which no tensor of the caller is.
        """
        for name, before in self._parameters.items():
            if not torch.equal(self.handed[name], before):
                raise CallFailure("ERROR", f"the kernel edited its input {name}; copy it first")
        for name, before in self._kept.items():
            own, given = self.handed[name].detach(), getattr(self.inputs, name)
            edited = (own != before) & ~(own.isnan() & before.isnan())
            if not bool(edited.any()):
                continue
            value = self.conventions.take(name, own, self.inputs)
            # An edit that the conversion rounds away is one all the same.
            value = torch.where(value == given, torch.nan, value)
            given.copy_(
                torch.where(
                    self.conventions.in_canonical_axes(name, edited, self.inputs), value, given
                )
            )

    def canonical(self, name: str, value: Any) -> Any:
        """The output `name` in canonical axes, still in the kernel's graph; junk as it is."""
        if not isinstance(value, Tensor) or not self._fits(name, value):
            return value
        taken = self.conventions.in_canonical_axes(name, value, self.inputs)
        if not SIGNATURE.is_state(name) and self.padding_undefined:
            return clear_padding(taken, self.inputs)
        return taken

    def _unless_aliased(self, name: str, value: Any) -> Any:
        """The output, or the caller's tensor where the output aliases the kernel's copy of that."""
        if not isinstance(value, Tensor) or not self._fits(name, value):
            return value
        taken = self.conventions.in_canonical_axes(name, value, self.inputs)
        for source in FLOATING:
            own, given = self.handed[source], getattr(self.inputs, source)
            if (
                own is not None
                and given is not None
                and shares_memory(value, own)
                and taken.shape == given.shape
                and torch.equal(taken, given)
            ):
                return given
        return self.canonical(name, value)

    def _fits(self, name: str, value: Tensor) -> bool:
        """Whether `value` can be brought to the canonical axes; the judge names a wrong shape."""
        if name == "o" and self.conventions.layout == "thd":
            return value.ndim == 3 and value.shape[0] == self.inputs.B * self.inputs.T
        return value.ndim == 4
