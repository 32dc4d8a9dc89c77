"""Calling `chunk_kda_fwd`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.ascend.gates import NATURAL
from kdaverify.adapters.ascend.layouts import Layout, chunk_indices
from kdaverify.adapters.ascend.revisions import Revision
from kdaverify.adapters.base import Output
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import Handover
from oracles.codecs import Map
from oracles.inputs import Inputs
from oracles.tensors import TOKENS


@dataclass(frozen=True)
class ChunkCall:
    """How the operator is called.

    Args:
        function: the vendor's.
        revision: what it follows.
        layout: said to the operator.
        state: order of the states said to the operator, kv or vk.
        chunk_size: 64 or 128.
        conventions: in which the tensors are really handed over and taken back; they agree with
            layout and state, except when a probe tests whether the operator follows others than it
            is given.
    """

    function: Callable[..., Any]
    revision: Revision
    layout: Layout
    state: str
    chunk_size: int
    conventions: Conventions

    def __call__(self, inputs: Inputs) -> Output:
        call = self.layout.call(inputs)
        handed = self.conventions.arguments(call)
        handover = Handover(self.conventions, call, handed)
        given = {name: _Given(handed[name], change) for name, change in self._changes(call).items()}
        o, final_state = self.answer(
            call, handed, {name: own.changed for name, own in given.items()}
        )
        for own in given.values():
            own.show_edits()
        final_state = handover.output(None, final_state).final_state
        return Output(self._canonical_o(o, call, handed, inputs), final_state)

    def raw(self, inputs: Inputs) -> tuple[Any, Any]:
        """What the operator returns for a call, as it lies in memory."""
        call = self.layout.call(inputs)
        handed = self.conventions.arguments(call)
        return self.answer(
            call,
            handed,
            {name: change.to(handed[name]) for name, change in self._changes(call).items()},
        )

    def answer(
        self, call: Inputs, handed: dict[str, Any], changed: dict[str, Tensor]
    ) -> tuple[Any, Any]:
        """o and the final state for the tensors handed over, some of them `changed` once more."""
        tensors = [self._shaped({**handed, **changed}[name]) for name in TOKENS]
        keywords: dict[str, Any] = {
            "layout": self.layout.name,
            "initial_state": handed["initial_state"],
            "output_final_state": True,
            "cu_seqlens": (
                None if handed["cu_seqlens"] is None else tuple(handed["cu_seqlens"].tolist())
            ),
            "chunk_indices": (
                None if handed["cu_seqlens"] is None else chunk_indices(call, self.chunk_size)
            ),
        }
        if len(self.revision.state_orders) > 1:
            keywords["state_v_first"] = self.state == "vk"
        returned = self.function(*tensors, handed["scale"], self.chunk_size, **keywords)
        return returned[0], returned[1]

    def _changes(self, call: Inputs) -> dict[str, _Change]:
        """What conventions cannot express: the revision's gates, and fp32 beta beside fp16."""
        changes: dict[str, _Change] = {}
        if self.revision.gate is not NATURAL:
            changes["g"] = self._gates(call)
        if call.beta.dtype == torch.float16:
            changes["beta"] = _Change(lambda beta: beta.float(), lambda beta: beta.half())
        return changes

    def _gates(self, call: Inputs) -> _Change:
        form, conventions = self.revision.gate, self.conventions

        def to(_: Tensor) -> Tensor:
            return conventions.hand("g", form.hand(call, self.chunk_size), call)

        def back(given: Tensor) -> Tensor:
            read = form.read(conventions.take("g", given, call), call, self.chunk_size)
            return conventions.hand("g", read.to(call.g.dtype), call)

        return _Change(to, back)

    def _shaped(self, tensor: Tensor) -> Tensor:
        # A probe may pass flat tokens where the layout has a batch axis: then there is none to
        # strip.
        return tensor if self.conventions.layout == "thd" else self.layout.strip(tensor)

    def _canonical_o(self, o: Any, call: Inputs, handed: dict[str, Any], inputs: Inputs) -> Any:
        if isinstance(o, Tensor) and self.layout.rank3 and o.ndim == 3:
            o = o.unsqueeze(0)
        layout = self.conventions.layout if self.revision.o_as_inputs else "bthd"
        taken = (
            Handover(Conventions(layout=layout, packing="cu_seqlens"), call, handed)
            .output(o, None)
            .o
        )
        if isinstance(taken, Tensor) and taken.shape == call.v.shape:
            return taken.view(inputs.v.shape)
        return taken


@dataclass(frozen=True)
class _Change:
    to: Map
    back: Map


class _Given:
    """A tensor changed once more before it is given; an edit of it must show in its source."""

    def __init__(self, handed: Tensor, change: _Change) -> None:
        self._handed, self._change = handed, change
        self.changed = change.to(handed)
        self._kept = self.changed.clone()

    @torch.no_grad()
    def show_edits(self) -> None:
        if not torch.equal(self.changed, self._kept):
            self._handed.copy_(self._change.back(self.changed))
