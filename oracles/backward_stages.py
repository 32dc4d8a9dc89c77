"""The backward stages of the chunk form one at a time, on tensors laid out as in `oracles.stages`.

Names are those under which `oracles.chunk_backward` stores: dX is the gradient of X, and what grows
over several stages has a name after each of them (dk_state, dk_wy, dk_head). dh [B, M, HV, K, V]
holds the gradient of the state after every chunk, in the places where h holds the state before it.
dbeta and dbeta_wy are [B, T, HV], dq and dk [B, T, H, K].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.chunk import Chunk
from oracles.chunk_backward import BACKWARD, BackwardStages, ChunkGradients
from oracles.gradients import over_key_heads
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.stages import SIGNATURES, Named, Signature, Walk, check_given, defined, empty
from oracles.tensors import FLOATING
from oracles.tokens import Tensors, Tokens

BACKWARD_SIGNATURES: Final[Mapping[str, Signature]] = {
    "dv_local": Signature(("Aqk", "do"), ("dv_local",)),
    "dA": Signature(("v_new", "do"), ("dAqk",)),
    "state_bwd": Signature(("G", "w", "qg", "kg", "do", "dv_local", "d_final_state"),
                           ("dh", "dv_new", "d_initial_state")),
    "dqkwg": Signature(("q", "k", "G", "h", "v_new", "do", "dh", "dv_new"),
                       ("dq_state", "dk_state", "dw", "dG_state")),
    "wy_bwd": Signature(("k", "v", "beta", "G", "R", "dv_new", "dw", "dk_state", "dG_state"),
                        ("dv", "dbeta_wy", "dk_wy", "dG_wy", "dAkk")),
    "intra_bwd": Signature(("q", "k", "beta", "G", "dAqk", "dAkk", "dq_state", "dk_wy", "dbeta_wy",
                            "dG_wy"), ("dq_head", "dk_head", "dbeta", "dG", "dq", "dk")),
    "cumsum_bwd": Signature(("g", "dG"), ("dg",)),
}  # fmt: skip
"""The stages, in order. dq and dk are dq_head and dk_head summed over the value heads of a key
head."""

FORWARD: Final = tuple(name for signature in SIGNATURES.values() for name in signature.writes)
"""What the stages of the forward write, and the backward ones may read."""

_PER_CHUNK: Final = ("h", "dh")
SUMMED: Final[Mapping[str, str]] = {"dq": "dq_head", "dk": "dk_head"}
"""What is summed over the value heads of a key head, and of which."""
_OF_STATES: Final = ("dh", "d_initial_state")
HELD_AS: Final = {
    "dv_local": "dv_new",
    "dq_state": "dq",
    "dq_head": "dq",
    "dq_done": "dq",
    "dk_state": "dk",
    "dk_wy": "dk",
    "dk_head": "dk",
    "dk_part": "dk",
    "dG_state": "dG",
    "dG_wy": "dG",
    "dbeta_wy": "dbeta",
}
"""Where ChunkGradients holds what has a name after each stage."""


def run_backward_stages(
    inputs: Inputs,
    given: Named,
    *,
    covers: tuple[str, ...] = tuple(BACKWARD_SIGNATURES),
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
    stages: BackwardStages = BACKWARD,
    signatures: Mapping[str, Signature] = BACKWARD_SIGNATURES,
    summed: Mapping[str, str] = SUMMED,
) -> dict[str, Tensor]:
    """Runs some backward stages, in order, on given tensors.

    Math: section 5, table.

    Args:
        inputs: the call.
        given: do, d_final_state, and what stages before wrote, forward and backward; values outside
            the defined regions are not read.
        covers: names of the stages to run, consecutive.
        chunk_size: C.
        dtype, arithmetic, stages: as for `oracles.chunk_backward.chunk_backward`.
        signatures, summed: of these stages, as BACKWARD_SIGNATURES and SUMMED.
    Returns:
        What the covered stages write.
    Raises:
        ValueError: a tensor that the stages need is missing.
    """
    check_given(given, covers, signatures)
    run = _BackwardRun(
        inputs, given, covers, chunk_size, dtype, arithmetic, stages, signatures, summed
    )
    return run.written()


@dataclass(frozen=True)
class _BackwardRun:
    """Some backward stages of a call, last chunk first, as for `run_backward_stages`."""

    inputs: Inputs
    given: Named
    covers: tuple[str, ...]
    chunk_size: int
    dtype: torch.dtype
    arithmetic: Arithmetic
    stages: BackwardStages
    signatures: Mapping[str, Signature]
    summed: Mapping[str, str]

    def written(self) -> dict[str, Tensor]:
        """What the covered stages write, by name."""
        dS, rows = self._walked()
        found = rows | {"dh": self._walk.kept, "d_initial_state": dS}
        writes = [name for stage in self.covers for name in self.signatures[stage].writes]
        # in the table's order, not a set's: stochastic rounding draws for one after the other
        for name in (name for name in self.summed if name in writes):
            over_values = over_key_heads(self.inputs, found[self.summed[name]], self.arithmetic)
            found[name] = self.arithmetic.store(name, over_values)
        return {name: found[name] for name in writes}

    def _walked(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of the state before the first chunk, and the token rows written."""
        inputs, size = self.inputs, self.chunk_size
        has_state = "state_bwd" in self.covers
        start = self.given["d_final_state"] if has_state else torch.zeros_like(inputs.state)
        dS = start.to(self.dtype)
        if not any(inputs.lengths):
            return dS, {name: empty(name, inputs, size, self.dtype) for name in self._rows_written}
        masked = tuple(
            self.given[name] if name == "do" else defined(name, self.given[name], inputs, size)
            for name in self._rows_read
        )
        (dS, _), rows = scan(
            inputs,
            size,
            (dS, self._walk.last),
            self._chunk,
            dtype=self.dtype,
            others=masked,
            reverse=True,
        )
        return dS, dict(zip(self._rows_written, rows, strict=True))

    def _chunk(self, carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        """One chunk of every live sequence: a step of the scan."""
        dS, index = carry
        b = self._restored(dS, index, tokens)
        found: dict[str, Tensor] = {}
        # A stage after it overwrites what one has stored: dq, dk, dG and dbeta grow.
        for stage in self.covers:
            getattr(self.stages, stage)(b)
            writes = set(self.signatures[stage].writes) & set(self._rows_written)
            found |= {name: getattr(b, HELD_AS.get(name, name)) for name in writes}
        if "state_bwd" in self.covers:
            self._walk.keep(b.dh, index)
        return (b.dS, index - 1), tuple(found[name] for name in self._rows_written)

    def _restored(self, dS: Tensor, index: Tensor, tokens: Tokens) -> ChunkGradients:
        """A chunk's gradients, with what earlier stages wrote where the covered ones read it."""
        read = dict(zip(self._rows_read, tokens.others, strict=True))
        b = ChunkGradients(
            Chunk(tokens, self.inputs.factor, self.arithmetic),
            read.get("do", torch.zeros_like(tokens.v)),
        )
        b.dS = dS
        forward = {name: tensor for name, tensor in read.items() if name in FORWARD}
        self._walk.restore(b.c, forward, index)
        dh = {} if self._dh is None else {"dh": self._dh[index]}
        _restore(b, read | dh)
        return b

    @cached_property
    def _needed(self) -> list[str]:
        return list(_needed(self.covers, self.signatures))

    @cached_property
    def _rows_read(self) -> list[str]:
        """Names of the token rows that the covered stages are given."""
        return [name for name in self._needed if name not in (*_PER_CHUNK, "d_final_state")]

    @cached_property
    def _rows_written(self) -> list[str]:
        """Names of the token rows that they write, before sums over value heads."""
        whole = (*_OF_STATES, *self.summed)
        return [
            name
            for stage in self.covers
            for name in self.signatures[stage].writes
            if name not in whole
        ]

    @cached_property
    def _walk(self) -> Walk:
        states = {name: self.given[name] for name in self._needed if name == "h"}
        return Walk(self.inputs, states, self.chunk_size, self.dtype)

    @cached_property
    def _dh(self) -> Tensor | None:
        """[B * M, HV, K, V] The given gradients of the states."""
        return self.given["dh"].flatten(0, 1).to(self.dtype) if "dh" in self._needed else None


def _restore(b: ChunkGradients, read: Named) -> None:
    """Puts what earlier backward stages wrote where the next ones read it."""
    for name in read.keys() - {*FORWARD, "do"}:
        setattr(b, HELD_AS.get(name, name), read[name])


def _needed(covers: tuple[str, ...], signatures: Mapping[str, Signature]) -> Iterator[str]:
    """What the covered stages read and do not write themselves, beside the call."""
    seen = {*FLOATING}
    for stage in covers:
        signature = signatures[stage]
        yield from (name for name in signature.reads if name not in seen)
        seen |= {*signature.reads, *signature.writes}
