"""KDA in chunks, stage by stage: oracle, emulator by rounding hooks, mutant by stages."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic, Shape, of_first, pass_over
from oracles.chunk_walk import Rows, Staged, walk_chunks
from oracles.double_double import Pair, two_sum
from oracles.inputs import Inputs
from oracles.tokens import OfSequences, Tensors, Tokens


@dataclass
class Chunk(OfSequences):
    """What one chunk of every live sequence has; stages read earlier ones and add their own.

    Shapes are [n, HV, ...] with n live sequences and C tokens; names are those of math.md 3.
    `resets` counts the hard resets (g = -inf) up to and including a row, per channel; it is None
    where the chunk has none. `rest` is what the rounding of G left out, where the stage of the sums
    kept it.
    """

    tokens: Tokens
    scale: float
    arithmetic: Arithmetic
    S: Tensor = field(init=False)  # [K, V] the carried state; known to the stages that advance it
    G: Tensor = field(init=False)  # [C, K] cumulative sum of the finite gates
    rest: Tensor | None = field(init=False, default=None)  # [C, K]
    resets: Tensor | None = field(init=False, default=None)  # [C, K]
    Aqk: Tensor = field(init=False)  # [C, C]
    Akk: Tensor = field(init=False)  # [C, C]
    R: Tensor = field(init=False)  # [C, C]
    w: Tensor = field(init=False)  # [C, K]
    u: Tensor = field(init=False)  # [C, V]
    qg: Tensor = field(init=False)  # [C, K]
    kg: Tensor = field(init=False)  # [C, K]
    h: Tensor = field(init=False)  # [K, V] the state as the dot products read it
    v_new: Tensor = field(init=False)  # [C, V]
    o: Tensor = field(init=False)  # [C, V]

    def store(self, name: str, tensor: Tensor) -> Tensor:
        return self.arithmetic.store(name, tensor)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.arithmetic.dot(a, b)

    def added(self, first: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """first + a b."""
        onto = self.arithmetic.onto
        return first + self.dot(a, b) if onto is None else onto(first, a, b)

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        """exp of the gates summed over (earlier, later], or [0, later]; rows broadcast.

        A difference of sums never meets inf - inf: hard resets are counted, not summed.
        """
        if earlier is None:
            exponent = self.G[..., later, :]
            rest = None if self.rest is None else self.rest[..., later, :]
            crossed = None if self.resets is None else self.resets[..., later, :] > 0
        else:
            exponent, rest = self._difference(
                lambda x: x[..., later, :], lambda x: x[..., earlier, :]
            )
            if self.resets is None:
                crossed = None
            else:
                crossed = self.resets[..., later, :] > self.resets[..., earlier, :]
        return self._exp(
            exponent if crossed is None else exponent.masked_fill(crossed, -torch.inf), rest
        )

    def pair_decay(self, rows: slice) -> Tensor:
        """D of math.md 3.2 for a block of rows against itself [s, s, K]; 0 above the diagonal."""
        exponent, rest = self._difference(
            lambda x: x[..., rows, None, :], lambda x: x[..., None, rows, :]
        )
        size, device = exponent.shape[-2], exponent.device
        # Masked before exp, not after alone: a non-causal difference overflows, and its gradient
        # would be 0 * inf. By 0, whose exponential takes a fifth of the time of that of -inf.
        exponent = exponent.masked_fill_(_above_diagonal(size, device), 0.0)
        if self.resets is not None:
            resets = self.resets[..., rows, :]
            crossed = resets[..., :, None, :] > resets[..., None, :, :]
            exponent = exponent.masked_fill_(crossed, -torch.inf)
        decay = self._exp(exponent, rest)
        return decay * _causal(size, decay.dtype, device)

    def is_padding(self, rows: slice, *of_rows: Tensor) -> bool:
        """Whether rows lie past every sequence's end and are 0: their products are 0 too.

        Three in ten blocks of the scores are of that kind, most of all in packs of short sequences.

        Args:
            of_rows: what the rows hold; a fault may have put something there.
        """
        return (
            not self.arithmetic.computes_padding
            and not bool(self.tokens.valid[:, rows].any())
            and not any(bool(x.any()) for x in of_rows)
        )

    def reaching(self, rows: slice, *of_rows: Tensor) -> int:
        """How many sequences, the longest first, have these rows; the products of the others are 0.

        In a pack of one long sequence and ten tokens alone, most blocks are padding in all but one.

        Args:
            of_rows: what the rows hold; a fault may have put something there.
        """
        reached = self.tokens.valid[:, rows.start]
        number = len(reached)
        if self.arithmetic.computes_padding or bool(reached[-1]):
            return number
        live = int(reached.sum())
        # Autograd would add up gradients of the decays in another order.
        if live and any(x.requires_grad for x in (self.G, *of_rows)):
            return number
        return number if any(bool(x[live:].any()) for x in of_rows) else live

    def _difference(self, later: Pick, earlier: Pick) -> tuple[Tensor, Tensor | None]:
        """A difference of sums, and what its roundings left out of it where that is kept."""
        if self.rest is None:
            return later(self.G) - earlier(self.G), None
        exponent, lost = two_sum(later(self.G), -earlier(self.G))
        return exponent, lost + (later(self.rest) - earlier(self.rest))

    def _exp(self, exponent: Tensor, rest: Tensor | None) -> Tensor:
        decay = self.arithmetic.exp(exponent)
        return decay if rest is None else decay * (1 + rest)


@lru_cache(maxsize=64)
def _above_diagonal(size: int, device: torch.device) -> Tensor:
    """[size, size, 1] True where the column is later than the row; never written to."""
    # Made once for all: autograd, too, may want to keep it.
    with torch.inference_mode(mode=False):
        return torch.ones(size, size, dtype=torch.bool, device=device).triu(1)[..., None]


@lru_cache(maxsize=64)
def _causal(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size, size, 1] 1 where the column is not later than the row, else 0; never written to."""
    with torch.inference_mode(mode=False):
        return (~_above_diagonal(size, device)).to(dtype)


Pick = Callable[[Tensor], Tensor]
Stage = Callable[[Chunk], None]


# The same everywhere: their number decides which roundings there are.
SCANNED = 16


class ScannedState(ABC):
    """A stage of the state that takes it past many chunks at once; called, it reads that before."""

    @abstractmethod
    def __call__(self, c: Chunk) -> None:
        """Math: 3.5. Writes h and v_new."""

    @abstractmethod
    def past(self, c: Chunk, blocks: Sequence[Rows], start: Tensor) -> Sequence[Tensor]:
        """The states after the chunks of each block, as `oracles.chunk_walk` scans."""


def cumsum(c: Chunk) -> None:
    """Math: 3.1. Writes G and resets."""
    c.G = c.store("G", finite_gates(c).cumsum(-2))


def finite_gates(c: Chunk) -> Tensor:
    """The gates with 0 in place of hard resets, which are counted instead. Writes resets."""
    hard = c.tokens.g.isneginf()
    if not bool(hard.any()):
        c.resets = None
        return c.tokens.g
    c.resets = hard.long().cumsum(-2)
    return c.tokens.g.masked_fill(hard, 0.0)


def compensated_cumsum(c: Chunk) -> None:
    """Math: 3.1. Writes G, its rest and resets: decays as precise as the gates, however far those
    of a chunk add up.
    """
    gates = finite_gates(c).unbind(-2)
    sums = list(accumulate(gates[1:], _added, initial=(gates[0], torch.zeros_like(gates[0]))))
    total, rest = (torch.stack(parts, dim=-2) for parts in zip(*sums, strict=True))
    c.G, c.rest = c.store("G", total), rest


def _added(pair: Pair, g: Tensor) -> Pair:
    total, lost = two_sum(pair[0], g)
    return total, pair[1] + lost


def scores(c: Chunk) -> None:
    """Math: 3.2. Writes Aqk and Akk."""
    q, k = c.tokens.q, c.tokens.k
    qk, kk = decayed_products(c, torch.stack((q, k), dim=-1), k).unbind(-1)
    c.Aqk = c.store("Aqk", c.scale * qk)
    c.Akk = c.store("Akk", (c.tokens.beta[..., None] * kk).tril(-1))


def decayed_products(c: Chunk, rows_of: Tensor, columns_of: Tensor) -> Tensor:
    """Math: sum_d x_id y_jd D_ijd for i >= j, else 0, of several x at once: they share every decay.

    Pairs inside a sub-block take their own exponent; a pair of different sub-blocks is anchored at
    the first row of the later one, so both factors are exp of something <= 0 and no factor above 1
    is ever formed.

    Args:
        rows_of: x, [..., C, K, number].
        columns_of: y, [..., C, K].
    Returns:
        [..., C, C, number].
    """
    C, number, size = rows_of.shape[-3], rows_of.shape[-1], c.arithmetic.sub_block
    bands: list[Tensor] = []
    reached = c.tokens.valid[:, ::size].sum(0).tolist()
    for first, sequences in zip(range(0, C, size), reached, strict=True):
        rows = slice(first, min(first + size, C))
        if sequences == len(rows_of):
            live = sequences
        else:
            live = c.reaching(rows, rows_of[..., rows, :, :], columns_of[..., rows, :])
        if not live:
            _pass_over(c.arithmetic, rows, rows_of.shape)
            bands.append(rows_of.new_zeros(*rows_of.shape[:-3], rows.stop - first, C, number))
            continue
        band = _band(_of_first(c, live), rows, rows_of[:live], columns_of[:live])
        if live < len(rows_of):
            band = torch.cat((band, band.new_zeros(len(rows_of) - live, *band.shape[1:])))
        bands.append(band)
    return torch.cat(bands, dim=-3)


def _of_first(c: Chunk, live: int) -> Chunk:
    """The first `live` sequences as the scores read them, with their samples among all."""
    number = len(c.G)
    if live == number:
        return c
    first, arithmetic = copy.copy(c), c.arithmetic
    first.tokens, first.G = c.tokens.rows(slice(None), live), c.G[:live]
    first.rest, first.resets = (None if x is None else x[:live] for x in (c.rest, c.resets))
    exp, dot = (of_first(one, live, number) for one in (arithmetic.exp, arithmetic.dot))
    first.arithmetic = replace(arithmetic, exp=exp, dot=dot)
    return first


def _band(c: Chunk, rows: slice, rows_of: Tensor, columns_of: Tensor) -> Tensor:
    """One block of rows of `decayed_products`, against all columns."""
    C, number = rows_of.shape[-3], rows_of.shape[-1]
    decayed = c.pair_decay(rows) * columns_of[..., None, rows, :]
    band = [c.dot(decayed, rows_of[..., rows, :, :])]
    if rows.stop < C:
        shape = *rows_of.shape[:-3], rows.stop - rows.start, C - rows.stop, number
        band.append(rows_of.new_zeros(shape))
    if rows.start:
        anchor, before = slice(rows.start, rows.start + 1), slice(0, rows.start)
        scaled = rows_of[..., rows, :, :] * c.decay(rows, anchor)[..., None]
        left = scaled.transpose(-3, -2)  # of shape [K, s, number]
        right = columns_of[..., before, :] * c.decay(anchor, before)
        band.insert(
            0, c.dot(right, left.flatten(-2)).unflatten(-1, left.shape[-2:]).transpose(-3, -2)
        )
    return torch.cat(band, dim=-2)


def _pass_over(arithmetic: Arithmetic, rows: slice, of_rows: Shape) -> None:
    """What the block of `rows` would draw in `decayed_products`, of x [..., C, K, number]."""
    (*many, _, K, number), size = of_rows, rows.stop - rows.start
    exp, dot = (partial(pass_over, one) for one in (arithmetic.exp, arithmetic.dot))
    exp((*many, size, size, K))
    dot((*many, size, size, K), (*many, size, K, number))
    if rows.start:
        exp((*many, size, K))
        exp((*many, rows.start, K))
        dot((*many, rows.start, K), (*many, K, size * number))


def solve(c: Chunk) -> None:
    """Math: 3.3, by substitution. Writes R."""
    identity = torch.eye(c.Akk.shape[-1], dtype=c.Akk.dtype, device=c.Akk.device)
    c.R = c.store(
        "R",
        torch.linalg.solve_triangular(
            c.Akk, identity.expand_as(c.Akk), upper=False, unitriangular=True
        ),
    )


def wy(c: Chunk) -> None:
    """Math: 3.4. Writes w, u, qg, kg."""
    every, last = slice(None), slice(-1, None)
    beta = c.tokens.beta[..., None]
    c.w = c.store(
        "w", c.dot(c.R, c.store("kb", c.store("beta_k_wy", beta * c.tokens.k) * c.decay(every)))
    )
    c.u = c.store("u", c.dot(c.R, c.store("vb", beta * c.tokens.v)))
    c.qg = c.store("qg", c.tokens.q * c.decay(every))
    c.kg = c.store("kg", c.tokens.k * c.decay(last, every))


def state(c: Chunk) -> None:
    """Math: 3.5. Writes h and v_new, advances S."""
    c.h = c.store("h", c.S)
    c.v_new = c.store("v_new", c.u - c.dot(c.w, c.h))
    carried = c.S * c.decay(slice(-1, None)).transpose(-1, -2)
    c.S = c.store("S", c.added(carried, c.kg.transpose(-1, -2), c.v_new))


def output(c: Chunk) -> None:
    """Math: 3.6. Writes o."""
    c.o = c.store("o", c.added(c.scale * c.dot(c.qg, c.h), c.Aqk, c.v_new))


@dataclass(frozen=True)
class Stages:
    """The pipeline as a table: variants and faults replace entries (dataclasses.replace)."""

    cumsum: Stage = cumsum
    scores: Stage = scores
    solve: Stage = solve
    wy: Stage = wy
    state: Stage = state
    output: Stage = output

    def run(self, c: Chunk) -> None:
        for stage in self.in_order:
            stage(c)

    def walk(
        self,
        inputs: Inputs,
        chunk_size: int,
        arithmetic: Arithmetic,
        outputs: Callable[[Chunk], Tensors],
        *,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensors]:
        """The state after all chunks of a call, and what `outputs` takes of each."""
        staged = Staged(
            lambda tokens: Chunk(tokens, inputs.factor, arithmetic),
            self.in_order,
            slice(4, 5) if arithmetic.together else slice(0, 6),
            "S",
            outputs,
            self.state.past if isinstance(self.state, ScannedState) else None,
            self.at_once,
        )
        start = inputs.state.to(dtype)
        return walk_chunks(
            inputs, chunk_size, start, staged, dtype=dtype, together=arithmetic.together
        )

    @property
    def at_once(self) -> int | None:
        """Chunks of a sequence that a scan takes at once; None: there is no scan."""
        return SCANNED if isinstance(self.state, ScannedState) else None

    @property
    def in_order(self) -> tuple[Stage, ...]:
        return self.cumsum, self.scores, self.solve, self.wy, self.state, self.output


STAGES = Stages()
COMPENSATED = Stages(cumsum=compensated_cumsum)
"""The same for float64 as an oracle: differences of large sums of gates lose nothing."""


def chunk(
    inputs: Inputs,
    *,
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
    stages: Stages = STAGES,
) -> tuple[Tensor, Tensor]:
    """Chunk form, batched over sequences and value heads; any chunk size, short tails, hard resets.

    Math: section 3. Tensors are stored in the order G, Aqk, Akk, R, beta_k_wy, kb, w, vb, u, qg,
    kg, h, v_new, S, o.

    Args:
        inputs: the call; every tensor is cast to `dtype` first.
        chunk_size: C, tokens per chunk.
        dtype: the type computed in.
        arithmetic: the roundings; native operations of `dtype` by default.
        stages: the six stages, replaceable one by one.
    Returns:
        o [B, T, HV, V] and S_T [N, HV, K, V], both in `dtype`.
    """
    if not any(inputs.lengths):
        return torch.zeros_like(inputs.v, dtype=dtype), inputs.state.to(dtype)
    final, (o,) = stages.walk(inputs, chunk_size, arithmetic, lambda c: (c.o,), dtype=dtype)
    return o, final
