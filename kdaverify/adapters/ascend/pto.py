"""Kernels written in PTO-ISA: the user's shared object with megagdn-pto's entry point."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from kdaverify.adapters.ascend import selftest
from kdaverify.adapters.ascend.gates import CUMULATED_LOG2, CUMULATED_NATURAL, LOG2, NATURAL
from kdaverify.adapters.ascend.mega_call import (
    HEAD_MAJOR,
    last_snapshots,
    pointed,
    prepared,
    show_edits,
)
from kdaverify.adapters.ascend.mega_kernel import ENTRY, WIDTH
from kdaverify.adapters.ascend.presence import lacking, npu_environment
from kdaverify.adapters.ascend.shared_object import SharedObject, load
from kdaverify.adapters.base import Adapter, AdapterError, Output, WatchedAdapter
from kdaverify.adapters.checked_options import Known, checked
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import fold_scale
from kdaverify.adapters.placement import on_device
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset
from kdaverify.problems import Domain, Problem
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, TOKENS

SNAPSHOT: Final = "snapshot"
_OPTIONS: Final[Known] = {
    "library": None,
    "device": None,
    "block_dim": None,
    "final_state": ("none", SNAPSHOT),
}
_BLOCKS: Final = {"npu": 20}
_HOW: Final = (
    "name a shared object with megagdn-pto's call_kernel, --impl ascend_pto:library=PATH (compile"
    " kernels/pto/mega_kernel_kda.cpp of megagdn-pto with bisheng; for a build on PTO-ISA's CPU"
    " simulator add device=cpu)"
)


@dataclass(frozen=True, kw_only=True)
class PtoOptions:
    """How the kernel is called.

    Args:
        library: the shared object.
        device: npu; cpu for a build of the CPU simulator, whose pointers are the host's.
        block_dim: blocks launched; by default the cube cores of an NPU, or 1.
        final_state: none, or snapshot: what megagdn-pto's own wrapper returns as the final state.
    """

    library: Path | None = None
    device: str = "npu"
    block_dim: int | None = None
    final_state: str = "none"


class AscendPto(WatchedAdapter):
    """The fused KDA kernel of megagdn-pto, or whatever has its entry point.

    Documented there: the order and types of the arguments; packed tokens with cu_seqlens int32 on
    the device; q, k and beta head-major, v, g and o token-major; everything fp16 but the summed
    gates and the workspaces beside them; q multiplied by the scale, q and k repeated for every
    value head, gates natural and one token's, beta activated; K = V = 128 and chunks of 128; no
    initial state. Snapshots hold the state that enters a chunk.

    Assumed: an older build, which takes no head count, ignores one more integer at the end (true of
    the C calling conventions of x86-64 and AArch64), and is content with its fp32 buffers where it
    only needs fp16 ones; a build for the CPU simulator takes host pointers, a null stream and
    block_dim 1.

    The kernel writes no final state. megagdn-pto's wrapper returns the snapshot of the last chunk
    in its place, which by the kernel's own account is the state that entered it;
    final_state=snapshot exposes just that, for judging.

    Args:
        options: library, device, block_dim and final_state.
        conventions: in which gates, betas and states are really handed over, where a probe passes
            others than the documented ones.
    Source: megagdn-pto, kernels/pto/mega_kernel_kda.cpp and megagdn_pto/kda_mega_kernel.py.
    """

    name = "ascend_pto"
    dtypes = ("fp16",)
    domain = Domain(widths=(WIDTH,), states=False)  # the kernel starts from zero
    isolated = True
    differentiable = False

    def __init__(
        self, options: PtoOptions | None = None, conventions: Conventions | None = None
    ) -> None:
        self._options = options or PtoOptions()
        self.conventions = conventions or Conventions(packing="cu_seqlens")
        self.device = self._options.device

    def missing(self) -> str | None:
        library = self._options.library
        if library is None:
            return f"no library: {_HOW}"
        if not library.is_file():
            return f"no file {library}: {_HOW}"
        return lacking(self.device)

    def contract(self, dtype: str) -> Contract:
        declared = preset("ascend_pto", dtype)
        if self._options.final_state == SNAPSHOT:
            return replace(declared, carry=FORMATS["fp16"])
        return declared

    def supports(self, problem: Problem) -> str | None:
        return "at least one token" if problem.T == 0 else super().supports(problem)

    def exposes(self, problem: Problem) -> tuple[str, ...]:
        return OUTPUTS if self._options.final_state == SNAPSHOT else OUTPUTS[:1]

    def received(self, inputs: Inputs) -> Inputs:
        call = fold_scale(self.conventions.received(inputs))
        if self.conventions.gate == "log":
            return replace(call, g=call.g.half().to(call.g.dtype))
        return call

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        if conventions.layout != self.conventions.layout:
            return None  # the layouts are mixed; the self-test distinguishes them
        return AscendPto(self._options, conventions)

    def forward(self, inputs: Inputs) -> Output:
        library, blocks = self._library(), self._blocks()
        verdict = _verdict(library, self.device, blocks)
        output = on_device(self.device, functools.partial(self._run, library, blocks), inputs)
        self._ran = f"{ENTRY} of {library.place}, block_dim {blocks}, {verdict}"
        return output

    def configured(self, options: Mapping[str, str]) -> Adapter:
        given = checked(self.name, options, _OPTIONS)
        parsed = {name: _parsed(name, value) for name, value in given.items()}
        return AscendPto(replace(self._options, **parsed))

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "library": self._library().place,
            **npu_environment(self.device),
        }

    def _library(self) -> SharedObject:
        if self._options.library is None:
            raise AdapterError(f"{self.name}: {_HOW}")
        return load(self._options.library)

    def _blocks(self) -> int:
        if self._options.block_dim is not None:
            return self._options.block_dim
        if self.device != "npu":
            return 1
        return int(
            getattr(
                torch.get_device_module("npu").get_device_properties(),
                "cube_core_num",
                _BLOCKS["npu"],
            )
        )

    def _run(self, library: SharedObject, blocks: int, inputs: Inputs) -> Output:
        call = prepared(inputs)
        tensors = pointed(call, self.conventions)
        outputs, left = library.run(tensors, blocks=blocks)
        show_edits(inputs, call, tensors, left)
        o = outputs["o"].view(inputs.v.shape)
        if self._options.final_state != SNAPSHOT:
            return Output(o, None)
        return Output(
            o, self.conventions.take("final_state", last_snapshots(outputs["s"], call), call)
        )


@functools.cache
def _verdict(library: SharedObject, device: str, blocks: int) -> str:
    """What the two-token self-test says of a library."""
    tested = selftest.question(H=3, HV=3, width=WIDTH, dtype=torch.float16, state=False)
    outputs, _ = library.run(
        pointed(prepared(tested.copied().on(device)), Conventions()), blocks=blocks
    )
    layouts = [
        selftest.laid_out_otherwise(name, declared_head_major=name in HEAD_MAJOR) for name in TOKENS
    ]
    readings = [
        selftest.Reading(""),
        *selftest.gates(NATURAL, (LOG2, CUMULATED_LOG2, CUMULATED_NATURAL), declarable=(LOG2,)),
        selftest.Reading(
            "a scale of K^-1/2 applied inside (declared: q comes multiplied)",
            lambda x: replace(x, scale=x.factor * x.K**-0.5),
        ),
        *selftest.values(),
        selftest.logits(),
        *layouts,
        selftest.Reading("o written head by head", o=selftest.head_major),
    ]
    return selftest.verdict(f"{ENTRY} of {library.place}", readings, tested, outputs["o"], None)


def _parsed(name: str, value: str) -> Any:
    if name == "library":
        return Path(value).resolve()
    if name != "block_dim":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise AdapterError(
            f"ascend_pto: option block_dim: wanted a whole number of at least 1, got {value!r}"
        )
    return int(value)


ASCEND_PTO: Final = AscendPto()
