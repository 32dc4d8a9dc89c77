"""Laws to the bit: what is resampled leaves alone what does not read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, everywhere, same_bits
from kdaverify.checks.laws.law import LIVELY, Law, ends_excluded
from kdaverify.checks.outcome import Outcome, first_wrong_or_last
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

RESAMPLED: Final = ("q", "k", "v", "beta")
"""Not the gates: a kernel may take the decays of a block relative to a later row of it, which moves
roundings of earlier rows."""


def _unmoved(
    adapter: Adapter, problem: Problem, other: Inputs, alike: Callable[[str, Tensor], Tensor]
) -> list[Outcome]:
    """Whether a call and the other give the same bits where they are to be alike."""
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), alike=alike)
    )


def later_tokens(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 1. A masked product adds an exact 0 whatever the finite numbers behind the mask
    are.
    """
    kept = before(problem)

    def alike(name: str, found: Tensor) -> Tensor:
        shown = kept[..., None, None] if name == "o" else torch.zeros(1, dtype=torch.bool)
        return shown.expand(found.shape)

    other = resampled(problem, tokens=kept, names=RESAMPLED)
    return _unmoved(adapter, problem, other, alike)


def before(problem: Problem) -> Tensor:
    """[B, T], True before a cut that follows from the problem's seed."""
    cut = 1 + problem.seed % (problem.T - 1)
    return (torch.arange(problem.T) < cut).expand(problem.B, problem.T)


def _tested_before(problem: Problem) -> str | None:
    if not problem.packed and problem.T > 1:
        return None
    return "wanted a dense problem of two tokens or more"


LATER_TOKENS: Final = Law(
    name="later-tokens",
    statement="q, k, v and beta of every token after t resampled: o up to t keeps its bits",
    section="7, law 1",
    exists_for=(
        "masks: pairs above the diagonal, rows of a tile past the token, an inverse that is not"
        " triangular (A2, A3)"
    ),
    check=later_tokens,
    untestable=_tested_before,
    wanted={**LIVELY, "packed": False},
)


def prefix_gradients(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 1 and its transpose. Later gates stay, and later dg is not compared: a kernel may
    take it as a difference.
    """
    kept = before(problem)
    do = cotangents(problem, "o").do
    assert do is not None
    given = Cotangents(do=torch.where(kept[..., None, None], do, torch.zeros_like(do)))

    def alike(name: str, found: Tensor) -> Tensor:
        if name == "d_initial_state":
            return torch.ones_like(found, dtype=torch.bool)
        rows = kept if name == "dg" else torch.ones_like(kept)
        return rows.view(*rows.shape, *[1] * (found.ndim - 2)).expand(found.shape)

    other = resampled(problem, tokens=kept, names=RESAMPLED)
    return same_bits(
        adapter,
        problem,
        Relation(BitwiseCall(problem.inputs(), given), BitwiseCall(other, given), alike=alike),
    )


PREFIX_GRADIENTS: Final = replace(
    LATER_TOKENS,
    name="prefix-gradients",
    statement=(
        "a loss on o up to t, and q, k, v and beta after t resampled: gradients up to t keep their"
        " bits, later ones stay 0"
    ),
    exists_for=(
        "masks of the backward: gradients that leak from later rows or chunks into earlier ones, or"
        " back (A12, B16, B26)"
    ),
    check=prefix_gradients,
    backward=True,
)


def neighbours(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 3. Of the sequences with tokens every second one is resampled, then the others;
    what is past the last offset, each time.

    Empty ones are kept.
    """
    return first_wrong_or_last(_sequences_kept(adapter, problem, parity) for parity in range(2))


def _sequences_kept(adapter: Adapter, problem: Problem, parity: int) -> list[Outcome]:
    lengths = torch.tensor([length for _, _, length in problem.spans])
    sequences = (lengths == 0) | ((lengths > 0).cumsum(0) % 2 == parity)
    tokens = torch.zeros(1, problem.T, dtype=torch.bool)
    tokens[0, : int(lengths.sum())] = sequences.repeat_interleave(lengths)

    def alike(name: str, found: Tensor) -> Tensor:
        kept = tokens[..., None, None] if name == "o" else sequences[:, None, None, None]
        return kept.expand(found.shape)

    other = resampled(problem, tokens=tokens, sequences=sequences)
    return _unmoved(adapter, problem, other, alike)


def _has_neighbours(problem: Problem) -> str | None:
    used = [length for _, _, length in problem.spans if length]
    if problem.packed and len(used) > 1:
        return None
    return "wanted a pack of two sequences with tokens or more"


NEIGHBOURS: Final = Law(
    name="neighbours",
    statement=(
        "every second sequence of a pack, and its padding, resampled: o and S_T of the others, and"
        " of empty ones, keep their bits"
    ),
    section="7, law 3",
    exists_for=(
        "offsets and chunk tables: tiles, states or gates that reach into the next sequence (V1,"
        " V10, V11, H4)"
    ),
    check=neighbours,
    untestable=_has_neighbours,
    wanted={**LIVELY, "packed": True},
)


def padding(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 14. Rows of o past the last offset belong to nobody and are not compared."""
    used = (torch.arange(problem.T) < sum(problem.lengths or ())).expand(problem.B, problem.T)

    def alike(name: str, found: Tensor) -> Tensor:
        return used[..., None, None].expand(found.shape) if name == "o" else everywhere(name, found)

    other = resampled(problem, tokens=used, names=TOKENS)
    return _unmoved(adapter, problem, other, alike)


def _has_padding(problem: Problem) -> str | None:
    if problem.packed and sum(problem.lengths or ()) < problem.T:
        return None
    return "wanted a pack with tokens past its last offset"


PADDING: Final = Law(
    name="padding",
    statement=(
        "tokens past the last offset resampled: o of every sequence and all S_T keep their bits"
    ),
    section="7, law 14",
    exists_for=(
        "rows past the end that are read or written back: padded tokens in states, in tails, in"
        " slot 0 or -1 (P8, S16, V9)"
    ),
    check=padding,
    untestable=_has_padding,
    wanted={**LIVELY, "packed": True},
)


def other_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5. Every second head is resampled, then the others: each has been a neighbour on
    both sides.

    The calls have the same shapes, so nothing of a kept head is computed otherwise.
    """
    return first_wrong_or_last(
        _heads_kept(adapter, problem, torch.arange(problem.HV) % 2 == parity) for parity in range(2)
    )


def _heads_kept(adapter: Adapter, problem: Problem, kept: Tensor) -> list[Outcome]:
    def alike(name: str, found: Tensor) -> Tensor:
        heads = kept[:, None] if name == "o" else kept[:, None, None]
        return heads.expand(found.shape)

    return _unmoved(adapter, problem, resampled(problem, heads=kept), alike)


OTHER_HEADS: Final = Law(
    name="other-heads",
    statement="every second head resampled: o and S_T of the others keep their bits",
    section="7, law 5",
    exists_for="indices of heads: rows, states, gates or accumulators of a neighbouring head (H23)",
    check=other_heads,
    untestable=lambda problem: None if problem.HV > 1 else "one value head has no other beside it",
    wanted=LIVELY,
)


def other_entries(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5. Every second entry is resampled, then the others."""
    return first_wrong_or_last(
        _entries_kept(adapter, problem, torch.arange(problem.B) % 2 == parity)
        for parity in range(2)
    )


def _entries_kept(adapter: Adapter, problem: Problem, kept: Tensor) -> list[Outcome]:
    def alike(_: str, found: Tensor) -> Tensor:
        return kept[:, None, None, None].expand(found.shape)

    other = resampled(problem, tokens=kept[:, None].expand(problem.B, problem.T), sequences=kept)
    return _unmoved(adapter, problem, other, alike)


OTHER_ENTRIES: Final = Law(
    name="other-entries",
    statement="every second batch entry resampled: o and S_T of the others keep their bits",
    section="7, law 5",
    exists_for="indices of batch entries: states, offsets or caches of another entry (X4)",
    check=other_entries,
    untestable=lambda problem: None if problem.B > 1 else "one batch entry has no other beside it",
    wanted={**LIVELY, "packed": False},
)


def no_writes(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 8. What is multiplied by beta is 0, whatever it is."""
    pure, nobody = problem.replace(beta="zero"), torch.zeros(problem.B, problem.T, dtype=torch.bool)
    return same_bits(
        adapter,
        problem,
        Relation(
            BitwiseCall(pure.inputs()),
            BitwiseCall(resampled(pure, tokens=nobody, names=("k", "v"))),
        ),
    )


NO_WRITES: Final = Law(
    name="no-writes",
    statement="beta = 0: o and S_T keep their bits when k and v are resampled",
    section="7, law 8",
    exists_for=(
        "writes without their beta, terms of k or v beside the delta rule, beta of another token or"
        " head"
    ),
    check=no_writes,
    untestable=lambda problem: ends_excluded(problem, beta=True),
    becomes=lambda problem: (problem.replace(beta="zero"),),
    wanted={**LIVELY, "state": ("random", "large", "asymmetric")},
)


BY_KEY_HEAD: Final = ("q", "k")


def resampled(
    problem: Problem,
    *,
    tokens: Tensor | None = None,
    heads: Tensor | None = None,
    sequences: Tensor | None = None,
    names: Sequence[str] = (*TOKENS, "initial_state"),
) -> Inputs:
    """The problem's call where only what is kept is its own; the rest comes from the same regimes
    at another seed.

    Args:
        tokens: [B, T], True where tokens are kept; None: all.
        heads: [HV], the value heads kept, and with them the key heads they read; None: all.
        sequences: [N], whose initial states are kept; None: all.
        names: the inputs that may be resampled.
    """
    own, other = problem.inputs(), problem.replace(seed=problem.seed + 1).inputs()
    rows = _all(problem.B, problem.T) if tokens is None else tokens
    columns = _all(problem.HV) if heads is None else heads
    states = _all(problem.N) if sequences is None else sequences

    def kept(name: str) -> Tensor:
        if name == "initial_state":
            return states[:, None, None, None] & columns[:, None, None]
        read = columns.view(problem.H, -1).any(1) if name in BY_KEY_HEAD else columns
        mask = rows[:, :, None] & read
        return mask if name == "beta" else mask[..., None]

    changed = {
        name: torch.where(kept(name), getattr(own, name), getattr(other, name))
        for name in names
        if getattr(own, name) is not None
    }
    return replace(own, **changed)


def _all(*sizes: int) -> Tensor:
    return torch.ones(sizes, dtype=torch.bool)
