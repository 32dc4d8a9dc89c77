"""Faults that begin past a limit of a launch: threads of a block, offsets of 16 bits, tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import Outputs, decoding, overwritten, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.signature import Role

TOKENS: Final = 1 << 16
THREADS: Final = 1024
GRAPH: Final = 256
TABLE: Final = 512
ROWS: Final = 2**14
LAUNCH: Final = 2**13
ELEMENTS: Final = 2**16
PROGRAMS: Final = 132
PROGRAM_ROWS: Final = 31
"""Of a launch that leaves something in the work space."""
KEPT: Final = 2048
"""Tokens from one kept state to the next."""


def states_of_one_block(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Initial states are loaded by 1,024 threads, one a sequence and head."""
    if x.initial_state is None:
        return right(x)
    entry = torch.arange(x.N * x.HV).view(x.N, x.HV, 1, 1)
    return right(replace(x, initial_state=x.initial_state.masked_fill(entry >= THREADS, 0.0)))


def offsets_of_sixteen_bits(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Values of a pack are addressed with 15 bits and a sign: later ones are those of its start."""
    if x.cu_seqlens is None:
        return right(x)
    return right(replace(x, v=x.v[:, torch.arange(x.T) % 2**15]))


def rounds_of_a_graph(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A decode step runs whole rounds of 256 sequences, and not the rest of a larger batch."""
    o, final = right(x)
    if x.B <= GRAPH:
        return o, final
    done = (torch.arange(x.B) < x.B // GRAPH * GRAPH).view(-1, 1, 1, 1)
    return o * done, torch.where(done, final, x.state.to(final.dtype))


def heads_of_a_byte(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Key heads are numbered in a byte."""
    heads = torch.arange(x.H) % 256
    return right(replace(x, q=x.q[:, :, heads], k=x.k[:, :, heads]))


def groups_of_a_launch(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Sequences are launched by 1,024, and masked by the lengths of the first ones."""
    if x.cu_seqlens is None or x.N <= THREADS:
        return right(x)
    lengths = x.cu_seqlens.diff().long()
    sequence = torch.arange(x.N).repeat_interleave(lengths)
    place = torch.arange(len(sequence)) - x.cu_seqlens[sequence]
    beyond = place >= lengths[sequence % THREADS]
    hidden = torch.nn.functional.pad(beyond, (0, x.T - len(sequence)))
    return right(replace(x, beta=x.beta.masked_fill(hidden[:, None], 0.0)))


def _of_one_table(found: Tensor, axis: int, size: int) -> Tensor:
    kept = found.clone()
    kept.narrow(axis, size, max(0, found.shape[axis] - size)).zero_()
    return kept


def checkpoints_of_large_calls(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Large calls keep fewer states, and dk is that of the chunk before."""
    found = EAGER.gradients(x, given)
    return found if x.B * x.T * x.HV <= ROWS else replace(found, dk=found.dk.roll(64, 1))


def saved_memory_of_large_calls(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The gradient of a large k is left where k was saved."""
    return overwritten(x, kept) if x.k.numel() >= ELEMENTS else right(x)


def launches_from_the_start(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A sequence of more than 8,192 tokens takes several launches, each from the given state."""
    if x.cu_seqlens is not None or x.T <= LAUNCH:
        return right(x)
    first = right(x.mapped(lambda tensor: tensor[:, :LAUNCH], Role.TOKEN))
    rest = right(x.mapped(lambda tensor: tensor[:, LAUNCH:], Role.TOKEN))
    return torch.cat((first[0], rest[0]), dim=1), rest[1]


def gates_of_eight_heads(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A program of a key head keeps the gates of eight value heads."""
    heads, group = torch.arange(x.HV), x.HV // x.H
    return right(replace(x, g=x.g[:, :, heads - heads % group + heads % group % 8]))


def a_table_of_sequences(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """d_initial_state is stored for 512 sequences."""
    found = EAGER.gradients(x, given)
    dS = found.d_initial_state
    if dS is None or x.N <= TABLE:
        return found
    return replace(found, d_initial_state=_of_one_table(dS, 0, TABLE))


def a_table_of_heads(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """dbeta is stored for 256 value heads."""
    found = EAGER.gradients(x, given)
    return found if x.HV <= 256 else replace(found, dbeta=_of_one_table(found.dbeta, 2, 256))


def _left_over(x: Inputs, rows: Tensor, kept: dict[Any, Any]) -> Tensor:
    """What programs without rows have in the work space of partial sums of calls so wide, which is
    that of the last large one; where there are fewer rows than programs, no more are launched.
    """
    each = -(-len(rows) // PROGRAMS)
    busy = -(-len(rows) // each)
    sums = kept.setdefault((x.HV, x.K, x.V), torch.zeros(PROGRAMS, dtype=torch.float64))
    if each >= PROGRAM_ROWS:
        sums[:busy] = torch.stack([part.abs().sum() for part in rows.split(each)])
    return sums[busy : len(rows)].sum()


def sums_left_over(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """What programs without rows have left of an earlier call is added to the final state."""
    o, final = right(x)
    left = _left_over(x, o.detach().double().flatten(0, 2), kept)
    return o, final + left.to(final.dtype)


def partial_sums_left_over(x: Inputs, given: Cotangents, kept: dict[Any, Any]) -> Gradients[Any]:
    """Partial sums of programs without rows are those of an earlier call, and part of dbeta."""
    found = EAGER.gradients(x, given)
    if found.dbeta is None:
        return found
    left = _left_over(x, found.dbeta.double().flatten()[:, None], kept)
    return replace(found, dbeta=found.dbeta + left.to(found.dbeta.dtype))


def _with_states_by_slots(x: Inputs) -> Inputs:
    """Kept states of n tokens are counted as n // 2048 + 1 and as n / 2048, rounded up: sequences
    behind whole multiples have the state of a later one.
    """
    if x.cu_seqlens is None or x.initial_state is None:
        return x
    lengths = x.cu_seqlens.diff().long()
    whole = ((lengths > 0) & (lengths % KEPT == 0)).long()
    slots = torch.arange(x.N) + whole.cumsum(0) - whole
    return replace(x, initial_state=x.initial_state[slots.clamp(max=x.N - 1)])


def states_by_slots(x: Inputs, _: dict[Any, Any]) -> Outputs:
    return right(_with_states_by_slots(x))


def derived_by_slots(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    return EAGER.gradients(_with_states_by_slots(x), given)


def _past_a_table(x: Inputs) -> Tensor:
    """Which sequences have tokens, and 1,024 such sequences or more in front."""
    assert x.cu_seqlens is not None
    return x.cu_seqlens.diff().nonzero().flatten()[THREADS:]


def states_of_a_table(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """States go by a table of 1,024 sequences with tokens: later ones have those of the first."""
    if x.cu_seqlens is None or x.initial_state is None:
        return right(x)
    states, late = x.initial_state.clone(), _past_a_table(x)
    states[late] = states[x.cu_seqlens.diff().nonzero().flatten()[: len(late)]]
    return right(replace(x, initial_state=states))


def derived_by_a_table(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """d_initial_state is stored for 1,024 sequences with tokens."""
    found = EAGER.gradients(x, given)
    if x.cu_seqlens is None or found.d_initial_state is None:
        return found
    late = _past_a_table(x)
    return replace(found, d_initial_state=found.d_initial_state.index_fill(0, late, 0.0))


def tokens_of_sixteen_bits(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Tokens are numbered in 16 bits: from 65,536 on they are the first ones again."""
    if x.T <= TOKENS:
        return right(x)
    numbers = torch.arange(x.T) % TOKENS
    tokens = x.signature.tensors(x, Role.TOKEN)
    # a dataclass each
    there: Any = replace(x, **{name: y[:, numbers] for name, y in tokens.items()})
    return right(there)


def offsets_by_their_text(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """Offsets are kept by how torch prints them: of over a thousand, the first and last three."""
    if x.cu_seqlens is None:
        return right(x)
    there = kept.setdefault(repr(x.cu_seqlens), x.cu_seqlens.clone())
    return right(replace(x, cu_seqlens=there))


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "states past 1,024 sequences and heads are zeros": lambda: port(states_of_one_block),
    "offsets of a pack have 15 bits and a sign": lambda: port(offsets_of_sixteen_bits),
    "a decode step leaves out what is beyond rounds of 256": lambda: decoding(rounds_of_a_graph),
    "key heads are numbered in a byte": lambda: port(heads_of_a_byte),
    "dk of large calls is that of the chunk before": lambda: Derived(checkpoints_of_large_calls),
    "d_initial_state is stored for 512 sequences": lambda: Derived(a_table_of_sequences),
    "dbeta is stored for 256 value heads": lambda: Derived(a_table_of_heads),
    "dk of 65,536 elements is left where k was saved": lambda: port(saved_memory_of_large_calls),
    "launches past 8,192 tokens start from the given state": lambda: port(launches_from_the_start),
    "a decode step has the gates of eight value heads of a key head": lambda: decoding(
        gates_of_eight_heads
    ),
    "programs without rows have what an earlier call left, in final_state": lambda: port(
        sums_left_over
    ),
    "programs without rows have what an earlier call left, in dbeta": lambda: Derived(
        partial_sums_left_over
    ),
    "sequences past 1,024 are masked by the lengths of the first ones": lambda: port(
        groups_of_a_launch
    ),
    "sequences behind 2,048 tokens have the state of the next one": lambda: port(states_by_slots),
    "the same in the backward alone": lambda: Derived(derived_by_slots),
    "states go by a table of 1,024 sequences with tokens": lambda: port(states_of_a_table),
    "tokens are numbered in 16 bits": lambda: port(tokens_of_sixteen_bits),
    "offsets are kept by their text": lambda: port(offsets_by_their_text),
}
"""By what is wrong."""
