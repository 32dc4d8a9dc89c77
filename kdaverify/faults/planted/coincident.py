"""Faults of kernels that infer from sizes, or from the lengths of a pack, what these do not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import Outputs, Patch, port, right
from oracles.inputs import Inputs

_FEWEST: Final = 3
"""Sequences that a kernel takes for a strided batch."""


def _tokens_by_size(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The axis of as many entries as there are value heads is theirs, whichever it is."""
    if x.B == 1 or x.T != x.HV or x.T == x.H:
        return right(x)
    return right(replace(x, beta=x.beta.transpose(1, 2)))


def _states_by_size(x: Inputs, _: dict[Any, Any]) -> Outputs:
    # Packs of two sequences, whose heads are two, are everywhere.
    if x.initial_state is None or x.cu_seqlens is None or x.N != x.HV or x.N == 2:
        return right(x)
    return right(replace(x, initial_state=x.initial_state.transpose(0, 1)))


def _widths_by_size(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Values are swapped with their heads where the last axis is that of heads by its size."""
    # Heads and columns of calls of few tokens are equal everywhere.
    if x.HV != x.V or x.HV == x.K or x.T != x.K:
        return right(x)
    return right(replace(x, v=x.v.transpose(2, 3)))


def _starts(x: Inputs, starts: Callable[[list[int]], list[int]]) -> Outputs:
    """Every sequence reads its values from where `starts` has its first token."""
    found = starts(list(x.lengths))
    rows = [at + t for at, length in zip(found, x.lengths, strict=True) for t in range(length)]
    rows += range(len(rows), x.T)
    return right(replace(x, v=x.v[:, torch.tensor(rows).clamp(max=x.T - 1)]))


def _begins(lengths: list[int]) -> list[int]:
    return torch.tensor([0, *lengths]).cumsum(0)[:-1].tolist()


def _as_a_progression(lengths: list[int]) -> list[int]:
    """Sequences of one length lie as far from each other as the first two of them."""
    begins = _begins(lengths)
    for length in {*lengths} - {0}:
        same = [n for n, own in enumerate(lengths) if own == length]
        if len(same) >= _FEWEST:
            apart = begins[same[1]] - begins[same[0]]
            for place, n in enumerate(same):
                begins[n] = begins[same[0]] + place * apart
    return begins


def _by_its_ends(lengths: list[int]) -> list[int]:
    """A pack whose first and last lengths are the mean is read as a batch of them."""
    mean = sum(lengths) // max(len(lengths), 1)
    if len(lengths) < _FEWEST or {lengths[0], lengths[-1]} != {mean}:
        return _begins(lengths)
    return [mean * n for n in range(len(lengths))]


def _reversed_where_sorted(lengths: list[int]) -> list[int]:
    """Packs sorted by length are computed from the longest on, and put back from the first on."""
    falls = all(a >= b for a, b in pairwise(lengths)) and lengths[0] > lengths[-1]
    return _begins(lengths[::-1]) if falls and len(lengths) >= _FEWEST else _begins(lengths)


def _states_of_a_byte(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Sequences without tokens are left out by a table, in which a number has a byte."""
    if x.initial_state is None or 2 * sum(map(bool, x.lengths)) > x.N:
        return right(x)
    numbers = torch.arange(x.N).to(torch.uint8).long()
    return right(replace(x, initial_state=x.initial_state[numbers]))


def _by_lengths(starts: Callable[[list[int]], list[int]]) -> Patch:
    return lambda x, _: right(x) if x.cu_seqlens is None else _starts(x, starts)


def _equal(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A pack of equal lengths is a batch, whose gates are those of its first entry."""
    same = x.cu_seqlens is not None and x.N >= _FEWEST and len({*x.lengths}) == 1
    if not same or x.lengths[0] < 2:
        return right(x)
    first: Tensor = x.g[:, : x.lengths[0]]
    rows = torch.cat((first.repeat(1, x.N, 1, 1), x.g[:, sum(x.lengths) :]), dim=1)
    return right(replace(x, g=rows))


def _folded(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A pack of equal lengths is a batch of T // N tokens each: padding counts."""
    if x.cu_seqlens is None or x.N < _FEWEST or len({*x.lengths}) > 1:
        return right(x)
    return right(replace(x, cu_seqlens=torch.arange(x.N + 1).to(x.cu_seqlens) * (x.T // x.N)))


def _of_one_state(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """States that are equal are loaded once: the first has the gradient of all."""
    state = x.initial_state
    if state is None or x.N == 1 or not state.any() or not (state == state[:1]).all():
        return right(x)
    return right(replace(x, initial_state=state[:1].expand_as(state)))


def _none_by_the_first(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Whether there is a state is read off the first sequence of a pack."""
    state = x.initial_state
    if state is None or x.cu_seqlens is None or x.N == 1 or state[0].any():
        return right(x)
    return right(replace(x, initial_state=torch.zeros_like(state)))


def _requests_of_one_token(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A pack of as many sequences as tokens is a batch of requests of one token each."""
    if x.cu_seqlens is None or x.N != x.T:
        return right(x)
    return right(replace(x, cu_seqlens=torch.arange(x.T + 1).to(x.cu_seqlens)))


def _drafts_without_a_state(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Two to four tokens, which a verification step has, are taken for a prompt."""
    is_draft = x.cu_seqlens is None and 2 <= x.T <= 4 and x.B == 1
    return right(replace(x, initial_state=None) if is_draft else x)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "beta is transposed where T = HV": lambda: port(_tokens_by_size),
    "states are transposed where N = HV, not 2": lambda: port(_states_by_size),
    "values are transposed where HV = V and T = K": lambda: port(_widths_by_size),
    "three equal lengths are read at equal distances": lambda: port(_by_lengths(_as_a_progression)),
    "lengths that fall are read from the last sequence on": lambda: port(
        _by_lengths(_reversed_where_sorted)
    ),
    "a pack of equal lengths has the gates of its first sequence": lambda: port(_equal),
    "sequences are counted in a byte where most are empty": lambda: port(_states_of_a_byte),
    "as many sequences as tokens are requests of one": lambda: port(_requests_of_one_token),
    "two to four tokens lose the state": lambda: port(_drafts_without_a_state),
    "the first length and the last are those of all": lambda: port(_by_lengths(_by_its_ends)),
    "a pack of equal lengths is a batch of T // N tokens": lambda: port(_folded),
    "equal states are loaded once": lambda: port(_of_one_state),
    "a first state of 0 is none of any sequence": lambda: port(_none_by_the_first),
}
"""By what is wrong."""
