"""A module of AscendC operators: its functions' conventions, found by calls, not by version."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.adapters.ascend import selftest
from kdaverify.adapters.ascend.chunk_op import ChunkCall
from kdaverify.adapters.ascend.gates import FORMS, LOG2, NATURAL, GateForm
from kdaverify.adapters.ascend.layouts import LAYOUTS, Layout
from kdaverify.adapters.ascend.recurrent_op import KEY_WIDTH, RecurrentCall
from kdaverify.adapters.ascend.revisions import (
    EITHER,
    MID,
    SQUARE_WIDTHS,
    TILE,
    V26_9_1,
    Revision,
    by_signature,
)
from kdaverify.adapters.ascend.signatures import Entry, entry
from kdaverify.adapters.base import AdapterError, WrongKernelError
from kdaverify.adapters.conventions import Conventions

CHUNK: Final = "chunk_kda_fwd"
RECURRENT: Final = "recurrent_kda"


class Binding:
    """The operators of one module on one device.

    Args:
        chunk: chunk_kda_fwd.
        recurrent: recurrent_kda, or None where the module has none that takes what fla_npu's takes.
        signed: the revision that chunk_kda_fwd's signature says; nothing is run to know it.
        device: type of the torch device they run on.
    """

    def __init__(
        self, chunk: Entry, recurrent: Entry | None, signed: Revision, device: str
    ) -> None:
        self.chunk, self.recurrent, self.signed, self.device = chunk, recurrent, signed, device

    @functools.cached_property
    def revision(self) -> Revision:
        """The revision by its signature; where two share one, by a width that only one takes."""
        if self.signed is EITHER:
            return MID if self._takes(TILE) else V26_9_1
        return self.signed

    @functools.cache  # noqa: B019 - bindings live as long as the process
    def chunk_verdict(self, layout: Layout) -> str:
        """What the self-test says of chunk_kda_fwd under a layout.

        Raises:
            WrongKernelError: it follows other conventions than its revision's.
        """
        revision = self.revision
        key_heads = 1 if revision.one_head_tnd and layout.name == "TND" else 2
        tested = selftest.question(
            H=key_heads,
            HV=4,
            width=SQUARE_WIDTHS[0] if revision.square else TILE,
            dtype=torch.bfloat16,
            state=True,
        )
        try:
            answer = self._chunk_call(layout, revision).raw(tested.copied().on(self.device))
        # it may refuse in any way; the suites will meet the same refusal
        except Exception as error:  # noqa: BLE001
            return f"two-token self-test refused: {type(error).__name__}: {error}"
        return selftest.verdict(
            self.chunk.place, _chunk_readings(revision, layout, key_heads), tested, *answer
        )

    @functools.cache  # noqa: B019 - bindings live as long as the process
    def recurrent_verdict(self, state: str) -> str:
        """What the self-test says of recurrent_kda under a state order.

        Raises:
            WrongKernelError: it follows other conventions than documented.
        """
        assert self.recurrent is not None
        tested = selftest.question(H=2, HV=4, width=KEY_WIDTH, dtype=torch.bfloat16, state=True)
        call = RecurrentCall(self.recurrent.call, state, Conventions(state=state))
        o, pool = call.raw(tested.copied().on(self.device))
        written = pool if state == "kv" else pool.mT.contiguous()
        # The conventions probe calls no step: what it would name is named here.
        readings = [
            replace(reading, declarable=False) for reading in _readings(NATURAL, key_heads=2)
        ]
        return selftest.verdict(self.recurrent.place, readings, tested, o, written)

    def _takes(self, width: int) -> bool:
        tested = selftest.question(H=2, HV=4, width=width, dtype=torch.bfloat16, state=False)
        try:
            self._chunk_call(LAYOUTS["BSND"], self.signed).raw(tested.copied().on(self.device))
        except Exception:  # noqa: BLE001 - host checks of vendors raise what they like
            return False
        return True

    def _chunk_call(self, layout: Layout, revision: Revision) -> ChunkCall:
        conventions = Conventions(layout=layout.conventional, packing="cu_seqlens")
        return ChunkCall(self.chunk.call, revision, layout, "kv", SQUARE_WIDTHS[0], conventions)


@functools.cache
def bind(module: str, device: str) -> Binding:
    """The operators of a module, imported now.

    Raises:
        AdapterError: it cannot be imported, or has no chunk_kda_fwd.
        WrongKernelError: its chunk_kda_fwd has the signature of no known revision.
    """
    imported = _imported(module, device)
    chunk, recurrent = entry(imported, CHUNK), entry(imported, RECURRENT)
    if chunk is None:
        raise AdapterError(
            f"{module}: has no {CHUNK}; name the module that has it, with the option module="
        )
    revision = by_signature(chunk.parameters)
    if revision is None:
        raise WrongKernelError(
            f"{chunk.place}: wanted the signature of a known revision (a gk, or a g with"
            f" state_v_first), got ({', '.join(chunk.parameters) or '*args, **kwargs'}); name a"
            " module whose function shows one, with the option module="
        )
    return Binding(
        chunk,
        recurrent if recurrent is not None and "q" in recurrent.parameters else None,
        revision,
        device,
    )


def _imported(module: str, device: str) -> Any:
    try:
        if device == "npu":
            importlib.import_module("torch_npu")  # registers the device with torch
        return importlib.import_module(module)
    except Exception as error:
        raise AdapterError(
            f"{module}: could not be imported: {type(error).__name__}: {error}; source CANN's"
            " set_env.sh first"
        ) from error


def _chunk_readings(revision: Revision, layout: Layout, key_heads: int) -> list[selftest.Reading]:
    readings = _readings(revision.gate, key_heads=key_heads)
    if layout.conventional == "bthd":
        return readings
    if revision.o_as_inputs:
        return [
            *(replace(r, o=selftest.head_major) for r in readings),
            selftest.Reading("o sequence-major (declared: as the inputs)"),
        ]
    return [
        *readings,
        selftest.Reading(
            "o head-major, as the inputs (declared: sequence-major)", o=selftest.head_major
        ),
    ]


def _readings(gate: GateForm, *, key_heads: int) -> list[selftest.Reading]:
    """The declared reading, and all that differ from it in one thing but the layout."""
    others = [form for form in FORMS if form is not gate]
    gates = selftest.gates(gate, others, declarable=() if gate.cumulated else (LOG2,))
    grouped = selftest.heads() if key_heads > 1 else []
    states = [*selftest.states(), selftest.both_states()]
    return [
        selftest.Reading(""),
        *gates,
        *selftest.scales(),
        *selftest.values(),
        selftest.logits(),
        *grouped,
        *states,
    ]
