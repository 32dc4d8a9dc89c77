"""The backward stages of the chunk form one at a time, on tensors laid out as in `oracles.stages`.

Names are those under which `oracles.chunk_backward` stores: dX is the gradient of X, and what grows
over several stages has a name after each of them (dk_state, dk_wy, dk_head). dh [B, M, HV, K, V]
holds the gradient of the state after every chunk, in the places where h holds the state before it.
dbeta and dbeta_wy are [B, T, HV], dq and dk [B, T, H, K].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.chunk import Chunk
from oracles.chunk_backward import BACKWARD, BackwardStages, ChunkGradients
from oracles.gradients import over_key_heads
from oracles.inputs import Inputs
from oracles.scan import Tensors, Tokens, scan
from oracles.stages import SIGNATURES, Named, Signature, Walk, check_given, defined, empty
from oracles.tensors import FLOATING

BACKWARD_SIGNATURES: Final[Mapping[str, Signature]] = {
    "dv_local": Signature(("Aqk", "do"), ("dv_local",)),
    "dA": Signature(("v_new", "do"), ("dAqk",)),
    "state_bwd": Signature(
        ("G", "w", "qg", "kg", "do", "dv_local", "d_final_state"),
        ("dh", "dv_new", "d_initial_state"),
    ),
    "dqkwg": Signature(
        ("q", "k", "G", "h", "v_new", "do", "dh", "dv_new"),
        ("dq_state", "dk_state", "dw", "dG_state"),
    ),
    "wy_bwd": Signature(
        ("k", "v", "beta", "G", "R", "dv_new", "dw", "dk_state", "dG_state"),
        ("dv", "dbeta_wy", "dk_wy", "dG_wy", "dAkk"),
    ),
    "intra_bwd": Signature(
        ("q", "k", "beta", "G", "dAqk", "dAkk", "dq_state", "dk_wy", "dbeta_wy", "dG_wy"),
        ("dq_head", "dk_head", "dbeta", "dG", "dq", "dk"),
    ),
    "cumsum_bwd": Signature(("g", "dG"), ("dg",)),
}
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
    needed = list(_needed(covers, signatures))
    rows = [name for name in needed if name not in (*_PER_CHUNK, "d_final_state")]
    written = [name for stage in covers for name in signatures[stage].writes]
    whole = (*_OF_STATES, *summed)
    tokenwise = [name for name in written if name not in whole]
    walk = Walk(inputs, {name: given[name] for name in needed if name == "h"}, chunk_size, dtype)
    after = given["dh"].flatten(0, 1).to(dtype) if "dh" in needed else None

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        dS, index = carry
        read = dict(zip(rows, tokens.others, strict=True))
        b = ChunkGradients(
            Chunk(tokens, dS, inputs.factor, arithmetic),
            read.get("do", torch.zeros_like(tokens.v)),
            dS,
        )
        walk.restore(b.c, {name: tensor for name, tensor in read.items() if name in FORWARD}, index)
        _restore(b, read if after is None else {**read, "dh": after[index]})
        found: dict[str, Tensor] = {}
        for stage in covers:
            getattr(stages, stage)(b)
            found |= {
                name: getattr(b, HELD_AS.get(name, name))
                for name in signatures[stage].writes
                if name not in whole
            }
        if "state_bwd" in covers:
            walk.keep(b.dh, index)
        return (b.dS, index - 1), tuple(found[name] for name in tokenwise)

    start = given["d_final_state"] if "state_bwd" in covers else torch.zeros_like(inputs.state)
    dS = start.to(dtype)
    produced: Tensors = tuple(empty(name, inputs, chunk_size, dtype) for name in tokenwise)
    if any(inputs.lengths):
        masked = tuple(
            given[name] if name == "do" else defined(name, given[name], inputs, chunk_size)
            for name in rows
        )
        (dS, _), produced = scan(
            inputs, chunk_size, (dS, walk.last), body, dtype=dtype, others=masked, reverse=True
        )
    everything = dict(zip(tokenwise, produced, strict=True)) | {
        "dh": walk.kept,
        "d_initial_state": dS,
    }
    # in the table's order, not a set's: stochastic rounding draws for one after the other
    for name in (name for name in summed if name in written):
        over_values = over_key_heads(inputs, everything[summed[name]], arithmetic)
        everything[name] = arithmetic.store(name, over_values)
    return {name: everything[name] for name in written}


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
