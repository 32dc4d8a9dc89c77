"""Laws of calls whose channels, heads or decays are moved: the results move with them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import LIVELY, Law, ends_excluded, of_shared_gates
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem
from kdaverify.problems.portable import Stream
from oracles.inputs import Inputs


def permuted_channels(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 names no channel. Sums over channels are then made in another order, so bits
    may change.

    The permuted call is held to its own exact result, which is the other one permuted, but for
    conversions that round by channel: raw gates with a bias of each channel are such.
    """
    own, random = problem.inputs(), torch.Generator().manual_seed(problem.seed)
    rows, columns = (torch.randperm(width, generator=random) for width in (problem.K, problem.V))
    state = None if own.initial_state is None else own.initial_state[..., rows, :][..., columns]
    g = own.g[..., rows] if problem.gates == "channel" else own.g
    moved = replace(
        own, q=own.q[..., rows], k=own.k[..., rows], g=g, v=own.v[..., columns], initial_state=state
    )
    return outcomes(
        adapter, moved, lambda: execute(adapter, moved, adapter.exposes(problem)).outputs
    )


PERMUTED_CHANNELS: Final = Law(
    name="permuted-channels",
    statement="key channels and value columns in another order: the same o and S_T, in that order",
    section="2, which names no channel",
    exists_for=(
        "lanes and tiles that are treated otherwise than the rest: an anchor from one channel, a"
        " tail of the width (GA17)"
    ),
    check=permuted_channels,
    untestable=lambda problem: (
        None if max(problem.K, problem.V) > 1 else "one channel and one column have no other order"
    ),
    judged=True,
)


def repeated_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 11."""
    grouped = _grouped(problem)
    own = grouped.inputs()
    q, k = (x.repeat_interleave(grouped.HV // grouped.H, dim=2) for x in (own.q, own.k))
    # Rows that a kernel normalises itself have another length in another head: the repeated call is
    # held to its own exact result.
    other = replace(own, q=q, k=k)
    return outcomes(
        adapter, other, lambda: execute(adapter, other, adapter.exposes(problem)).outputs
    )


def _grouped(problem: Problem) -> Problem:
    """The problem, with twice the value heads where every one has a key head of its own."""
    return problem if problem.HV > problem.H else problem.replace(HV=2 * problem.H)


def _both(problem: Problem) -> tuple[Problem, ...]:
    grouped = _grouped(problem)
    return (grouped, grouped.replace(H=grouped.HV))


REPEATED_HEADS: Final = Law(
    name="repeated-heads",
    statement="q and k repeated for every value head that reads them, H = HV: the same o and S_T",
    section="7, law 11",
    exists_for=(
        "the map from value heads to key heads, grids and strides that count one kind of head for"
        " the other"
    ),
    check=repeated_heads,
    becomes=_both,
    judged=True,
)


def permuted_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: value heads that share a key head are alike (law 11); v, g, beta and S_0 move together,
    and o and S_T with them.

    The permuted call is held to its own exact result, as in `permuted_channels`: raw gates with
    parameters of each head round otherwise in another one.
    """
    grouped = _grouped(problem)
    own = grouped.inputs()
    moved = torch.arange(grouped.HV).unflatten(0, (grouped.H, -1)).roll(1, 1).flatten()
    state = None if own.initial_state is None else own.initial_state[:, moved]
    other = replace(
        own,
        v=own.v[:, :, moved],
        g=own.g[:, :, moved],
        beta=own.beta[:, :, moved],
        initial_state=state,
    )

    return outcomes(
        adapter, other, lambda: execute(adapter, other, adapter.exposes(grouped)).outputs
    )


PERMUTED_HEADS: Final = Law(
    name="permuted-heads",
    statement=(
        "v, g, beta and S_0 of the value heads of a group in another order: the same o and S_T, in"
        " that order"
    ),
    section="7, law 11",
    exists_for=(
        "the gate, beta or state of another value head of the group, or of its first one for all"
        " (D38)"
    ),
    check=permuted_heads,
    untestable=of_shared_gates,
    becomes=lambda problem: (_grouped(problem),),
    wanted=LIVELY,
    judged=True,
)


# Half of the Hadamard matrix of 4: orthogonal, and exact in every format but for the sum of four
# numbers.
TURN: Final = (
    torch.tensor(
        [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64
    )
    / 2
)
PLANES: Final = len(TURN)


def rotated_channels(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 with one decay for all channels, which commutes with every orthogonal matrix.

    The turned call is held to its own exact result: that of the first one, but for the rounding of
    what is turned.
    """
    own = problem.inputs()
    state = None if own.initial_state is None else turned(own.initial_state.mT).mT.contiguous()
    moved = replace(own, q=turned(own.q), k=turned(own.k), initial_state=state)
    return outcomes(
        adapter, moved, lambda: execute(adapter, moved, adapter.exposes(problem)).outputs
    )


def turned(x: Tensor) -> Tensor:
    """The last axis in groups of four, each turned, rounded to x's type; a rest stays."""
    whole = x.shape[-1] // PLANES * PLANES
    groups = x[..., :whole].double().unflatten(-1, (-1, PLANES)) @ TURN
    return torch.cat(
        (
            groups.flatten(-2).to(torch.promote_types(x.dtype, torch.float32)).to(x.dtype),
            x[..., whole:],
        ),
        dim=-1,
    )


def _tested_rotated(problem: Problem) -> str | None:
    return of_shared_gates(problem) or (
        None
        if problem.K >= PLANES
        else f"{problem.K} channels are fewer than the {PLANES} that turn"
    )


ROTATED_CHANNELS: Final = Law(
    name="rotated-channels",
    statement=(
        "q, k and S_0 turned by an orthogonal matrix: the same o, and S_T turned, where channels"
        " share a gate"
    ),
    section="2, where channels agree",
    exists_for=(
        "channels that are treated apart though their gate is one: products of different channels"
        " lost, gates of one channel alone"
    ),
    check=rotated_channels,
    untestable=_tested_rotated,
    wanted={**LIVELY, "key": ("one-hot", "random", "coherent-0.6")},
    judged=True,
)


HALVINGS: Final = 6
"""Of a sequence, spread over its tokens: 2^6 times any value that problems have is a normal number
of fp16, its inverse too."""


def shifted_gates(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: with g_t = -n_t ln 2 and N_t their sum, o_t is 2^-N_t times that of v_t 2^N_t without
    decay, and so is S.

    The call without decay is made; what comes of it, times the powers of two, is held to the exact
    result of the gated call.
    """
    own, total = problem.inputs(), _halvings(problem)
    steps = torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
    # A sum restarts with every sequence of a pack.
    g = -math.log(2.0) * torch.where(steps < 0, total, steps)[..., None]
    still = replace(own, v=torch.ldexp(own.v, total[..., None]), g=torch.zeros_like(own.g))
    gated = replace(own, g=g.to(torch.float64))

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, still, adapter.exposes(problem)).outputs
        left = {"o": total[..., None], "final_state": _at_the_end(own, total)[..., None, None]}
        return {name: torch.ldexp(x, -left[name]) for name, x in found.items()}

    return outcomes(adapter, gated, produce)


def _halvings(problem: Problem) -> Tensor:
    """N_t [B, T, HV] of every token: HALVINGS in each sequence and head, at own tokens."""
    total = torch.zeros(problem.B, problem.T, problem.HV, dtype=torch.int32)
    for n, (b, first, length) in enumerate(problem.spans):
        for head in range(problem.HV if length else 0):
            at = torch.tensor(Stream(problem.seed, "halvings", n, head).integers(length, HALVINGS))
            total[b, first : first + length, head] = (
                torch.bincount(at, minlength=length).cumsum(0).int()
            )
    return total


def _at_the_end(own: Inputs, total: Tensor) -> Tensor:
    """N of the last token of every sequence [N, HV], 0 where there is none."""
    flat = total.flatten(0, 1)
    rows = [
        first + length - 1 if length else None
        for first, length in zip(own.starts, own.lengths, strict=True)
    ]
    return torch.stack([torch.zeros_like(flat[0]) if row is None else flat[row] for row in rows])


SHIFTED_GATES: Final = Law(
    name="shifted-gates",
    statement=(
        "v_t times 2^N_t and no decay: o_t and S_T of the call whose gates halve N_t times until t,"
        " times 2^N_t"
    ),
    section="2, where channels agree",
    exists_for=(
        "calls without decay that take a path of their own: updates skipped or made twice (D33)"
    ),
    check=shifted_gates,
    untestable=lambda problem: of_shared_gates(problem) or ends_excluded(problem, gate=True),
    wanted={**LIVELY, "value": ("normal", "powers-of-two")},
    judged=True,
)
