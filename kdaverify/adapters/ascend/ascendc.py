"""flashserve's AscendC operators: `chunk_kda_fwd`, and `recurrent_kda` for decode steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kdaverify.adapters.ascend.binding import RECURRENT, Binding, bind
from kdaverify.adapters.ascend.chunk_op import ChunkCall
from kdaverify.adapters.ascend.gates import through
from kdaverify.adapters.ascend.layouts import LAYOUTS, Layout
from kdaverify.adapters.ascend.presence import lacking, npu_environment, version_of
from kdaverify.adapters.ascend.recurrent_op import RecurrentCall, limit
from kdaverify.adapters.ascend.revisions import CHUNK_SIZES, EITHER, MID, SQUARE_WIDTHS, limits
from kdaverify.adapters.ascend.route import DEDUCED, route, work_of
from kdaverify.adapters.base import Adapter, AdapterError, Output, WatchedAdapter, WrongKernelError
from kdaverify.adapters.checked_options import Known, checked
from kdaverify.adapters.convention_checks import ALLOWED
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.placement import on_device
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Problem
from oracles.inputs import Inputs

MODULE: Final = "fla_npu.ops.ascendc"
NARROW: Final = (16, 32)
_OPTIONS: Final[Known] = {
    "layout": tuple(LAYOUTS),
    "state": ALLOWED["state"],
    "chunk_size": tuple(str(size) for size in CHUNK_SIZES),
    "widths": ("square", "any"),
    "module": None,
    "device": None,
}


@dataclass(frozen=True, kw_only=True)
class AscendcOptions:
    """How the operators are called.

    Args:
        layout: of the inputs: BSND, BNSD, TND or NTD.
        state: order of the states, kv or vk.
        chunk_size: 64 or 128.
        widths: any, where a revision whose signature leaves it open is known to take more than K =
            V = 64 and K = V = 128; square.
        module: the Python module that has the operators.
        device: type of the torch device they run on.
    """

    layout: Layout = LAYOUTS["BSND"]
    state: str = "kv"
    chunk_size: int = 64
    widths: str = "square"
    module: str = MODULE
    device: str = "npu"

    @property
    def conventions(self) -> Conventions:
        return Conventions(layout=self.layout.conventional, state=self.state, packing="cu_seqlens")


class AscendC(WatchedAdapter):
    """Whichever chunk_kda_fwd is installed, found by its signature, checked by a self-test.

    The name stands for several contracts: an early one takes gates summed over the chunk in log2
    and returns o in the layout of the inputs, later ones take natural gates and return o
    sequence-major. Gates, betas, q and k are handed over activated and normalised; every switch
    that would do it inside stays off.

    A decode step runs recurrent_kda on a private pool, in BSND and in the same state order; what
    that operator does not take (dtypes but bf16, K but 128) steps through chunk_kda_fwd, and
    `proof` says which ran.

    Args:
        options: layout, state order, chunk size, widths, module and device.
        conventions: in which tensors are really handed over, where a probe passes others.
    Source: flash-linear-attention-npu, torch_custom/fla_npu/fla_npu/ops/ascendc and
    fla/ops/ascendc/kda.
    """

    name = "ascendc"
    dtypes = ("fp16", "bf16")
    isolated = True
    differentiable = False

    def __init__(
        self, options: AscendcOptions | None = None, conventions: Conventions | None = None
    ) -> None:
        self._options = options or AscendcOptions()
        self.conventions = conventions or self._options.conventions
        self.device = self._options.device
        self.widths = NARROW + SQUARE_WIDTHS if self._options.widths == "any" else SQUARE_WIDTHS

    def missing(self) -> str | None:
        return lacking(self.device, self._options.module.partition(".")[0])

    def contract(self, dtype: str) -> Contract:
        return replace(preset("ascendc", dtype), chunk_size=self._options.chunk_size)

    def supports(self, problem: Problem) -> str | None:
        try:
            signed = self._bound.signed
        except (AdapterError, WrongKernelError):
            return None  # the call says what is wrong
        revision = MID if signed is EITHER and self._options.widths == "any" else signed
        return next(limits(revision, self._options.layout, self._options.state, problem), None)

    def received(self, inputs: Inputs) -> Inputs:
        call, form = self.conventions.received(inputs), self._bound.signed.gate
        return through(form, call, self._options.chunk_size) if form.cumulated else call

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        if conventions.gate != self.conventions.gate and self._bound.signed.gate.cumulated:
            # summed gates have no other base to be declared in; the self-test distinguishes them
            return None
        return AscendC(self._options, conventions)

    def forward(self, inputs: Inputs) -> Output:
        bound, said = self._bound, self._options
        verdict = bound.chunk_verdict(said.layout)
        call = ChunkCall(
            bound.chunk.call,
            bound.revision,
            said.layout,
            said.state,
            said.chunk_size,
            self.conventions,
        )
        output = on_device(self.device, call, inputs)
        way = (
            f"{route(bound.revision, work_of(said.layout.call(inputs), said.chunk_size))}"
            f" ({DEDUCED})"
        )
        self._ran = (
            f"{bound.chunk.place}, {bound.revision.reported}, {said.layout.name},"
            f" states {said.state}, {verdict}, {way}"
        )
        return output

    def step(self, inputs: Inputs) -> Output:
        bound, said = self._bound, self._options
        reason = f"no {RECURRENT} there" if bound.recurrent is None else limit(inputs)
        if bound.recurrent is None or reason is not None:
            output = self.forward(inputs)
            self._ran = f"{self._ran} (for a step: {reason})"
            return output
        verdict = bound.recurrent_verdict(said.state)
        call = RecurrentCall(
            bound.recurrent.call, said.state, Conventions(state=self.conventions.state)
        )
        output = on_device(self.device, call, inputs)
        self._ran = f"{bound.recurrent.place}, private pool, states {said.state}, {verdict}"
        return output

    def configured(self, options: Mapping[str, str]) -> Adapter:
        given = checked(self.name, options, _OPTIONS)
        parsed = {name: _parsed(name, value) for name, value in given.items()}
        return AscendC(replace(self._options, **parsed))

    def variants(self) -> Mapping[str, Adapter]:
        said = self._options
        orders = said.state, *(order for order in self._state_orders() if order != said.state)
        choices = [
            (layout, order)
            for layout in LAYOUTS.values()
            for order in orders
            if (layout, order) != (said.layout, said.state)
        ]
        return {
            f"{layout.name}-{order}": AscendC(replace(said, layout=layout, state=order))
            for layout, order in choices
        }

    def environment(self) -> dict[str, str]:
        module = self._options.module
        return {
            **super().environment(),
            **version_of(module.partition(".")[0]),
            "module": module,
            **npu_environment(self.device),
        }

    @property
    def _bound(self) -> Binding:
        return bind(self._options.module, self.device)

    def _state_orders(self) -> tuple[str, ...]:
        try:
            return self._bound.signed.state_orders
        except (AdapterError, WrongKernelError):
            return ALLOWED["state"]


def _parsed(name: str, value: str) -> object:
    return LAYOUTS[value] if name == "layout" else int(value) if name == "chunk_size" else value


ASCENDC: Final = AscendC()
