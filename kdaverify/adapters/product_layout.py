"""Where the tokens of a delta rule are in a call of a delta product: see `delta_product`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import torch
from torch import Tensor

HALVED: Final = (1, 3, 40)
"""Tokens of the product before which the state is halved: few, since what is halved three times
keeps its digits in fp16, where 2^-14 is the smallest normal number."""


@dataclass(frozen=True)
class ProductLayout:
    """Where the tokens of a delta rule are in a call of a delta product.

    Args:
        steps: [R, M n] the token, a row of B T, whose k and v each step has.
        real: [R, M n] whether it has the token's beta; 0 elsewhere.
        queries: [R, M] the token whose q each token of the product has.
        decays: [R, M] the token whose g it has; -1 for a gate of 0.
        shown: [R, M] whether its o is that token's.
        halved: [R, M] how often the state was halved before.
        copies: of every sequence.
        offsets: of the sequences of the product, or None.
    """

    steps: Tensor
    real: Tensor
    queries: Tensor
    decays: Tensor
    shown: Tensor
    halved: Tensor
    copies: int
    offsets: Tensor | None

    @classmethod
    def spread(cls, shape: tuple[int, int], cu_seqlens: Tensor | None, n: int) -> Self:
        """Token t among steps of beta 0."""
        tokens = torch.arange(shape[0] * shape[1]).view(shape)
        steps = tokens.repeat_interleave(n, 1)
        real = torch.arange(steps.shape[1]) % n == (steps - steps[:, :1]) % n
        none = torch.zeros_like(tokens)
        return cls(steps, real, tokens, tokens, tokens >= 0, none, 1, cu_seqlens)

    @classmethod
    def merged(
        cls, shape: tuple[int, int], cu_seqlens: Tensor | None, n: int, still: Tensor
    ) -> Self:
        """Every token alone, then up to n in one where those after the first do not decay.

        Args:
            still: [B T] whether a token's gates are 0.
        """
        (B, T), packed = shape, cu_seqlens is not None
        ends = [b * T for b in range(B + 1)] if cu_seqlens is None else cu_seqlens.tolist()
        spans = [*pairwise(ends)]
        groups = [_still_groups(span, still.tolist(), n) for span in spans]
        alone = [[range(t, t + 1) for t in range(*span)] for span in spans]
        last = {group[-1] for found in groups for group in found if len(group) > 1}
        parts = [
            ProductToken.laid(found, n, 0 if packed else T)
            for copies in (alone, groups)
            for found in copies
        ]
        rows = 1 if packed else len(parts)
        every = [token for part in parts for token in part]
        steps = torch.tensor([token.steps for token in every]).view(rows, -1)
        real = torch.tensor([token.real for token in every]).view(rows, -1)
        queries = torch.tensor([token.tokens[-1] for token in every]).view(rows, -1)
        decays = torch.tensor([token.decay for token in every]).view(rows, -1)
        shown = torch.tensor([token.shown(last) for token in every]).view(rows, -1)
        lengths = [0, *map(len, parts)]
        offsets = None if cu_seqlens is None else torch.tensor(lengths).cumsum(0).to(cu_seqlens)
        return cls(steps, real, queries, decays, shown, torch.zeros_like(queries), 2, offsets)

    @classmethod
    def of_gates(cls, given: Mapping[str, Any], n: int) -> Self:
        """Merged where a token does not decay, and no gradient of its gate is wanted."""
        q, g, cu_seqlens = given["q"], given["g"], given.get("cu_seqlens")
        shape: tuple[int, int] = tuple(q.shape[:2])
        still = (g == 0).flatten(2).all(-1)
        recorded = any(isinstance(x, Tensor) and x.requires_grad for x in given.values())
        # Of gates as decays, or before their activation, some are above 0.
        if recorded or bool((g > 0).any()) or not bool(still[:, 1:].any()):
            return cls.spread(shape, cu_seqlens, n)
        return cls.merged(shape, cu_seqlens, n, still.flatten())

    @classmethod
    def grouped(
        cls, shape: tuple[int, int], cu_seqlens: Tensor | None, n: int, *, halves: bool
    ) -> Self:
        """n tokens in one, in n shifted copies."""
        (B, T), packed = shape, cu_seqlens is not None
        ends = [b * T for b in range(B + 1)] if cu_seqlens is None else cu_seqlens.tolist()
        spans = [*pairwise(ends)]
        parts = [_shifted(span, shift, n, even=not packed) for shift in range(n) for span in spans]
        rows = 1 if packed else len(parts)
        steps, real, halved = (torch.cat(x).view(rows, -1) for x in zip(*parts, strict=True))
        lengths = [0, *(len(tokens) for *_, tokens in parts)]
        offsets = None if cu_seqlens is None else torch.tensor(lengths).cumsum(0).to(cu_seqlens)
        last = slice(n - 1, None, n)
        queries, shown = steps[:, last], real[:, last]
        return cls(steps, real, queries, queries, shown, halves * halved, n, offsets)

    def arguments(self, given: Mapping[str, Any], nothing: float) -> dict[str, Any]:
        """Those of the product, for those of the delta rule.

        Args:
            nothing: the beta of a step that changes nothing, as the function takes it.
        """
        made: Mapping[str, Callable[[Any], Any]] = {
            "q": lambda q: _taken(q, self.queries),
            "g": self._decays,
            "k": lambda k: _taken(k, self.steps),
            "v": self._values,
            "beta": lambda x: _taken(x, self.steps).masked_fill(~self.real[..., None], nothing),
            "initial_state": lambda state: state.repeat(self.copies, 1, 1, 1),
            "cu_seqlens": lambda _: self.offsets,
        }
        return {
            name: value if value is None or name not in made else made[name](value)
            for name, value in given.items()
        }

    def _decays(self, g: Tensor) -> Tensor:
        found = _taken(g, self.decays.clamp(min=0))
        return found.masked_fill((self.decays < 0).view(*self.decays.shape, *[1] * (g.ndim - 2)), 0)

    def _values(self, v: Tensor) -> Tensor:
        halved = self.halved.repeat_interleave(self.steps.shape[1] // self.halved.shape[1], 1)
        return _doubled(_taken(v, self.steps), -halved)

    def gates(self, beta: Tensor) -> Tensor:
        """[R, M, HV] Log gates that halve the state."""
        first = self.queries.new_zeros(len(self.halved), 1)
        halves = self.halved.diff(dim=1, prepend=first).clamp(min=0)
        wide = torch.promote_types(beta.dtype, torch.float32)
        return (-math.log(2) * halves.to(wide))[..., None].repeat(1, 1, beta.shape[2])

    def outputs(self, o: Tensor, shape: tuple[int, int]) -> Tensor:
        """[B, T, HV, V]; 0 for rows of no sequence."""
        whole = _doubled(o, self.halved)[self.shown]
        rows = o.new_zeros(shape[0] * shape[1], *o.shape[2:])
        return rows.index_put((self.queries[self.shown],), whole).view(*shape, *o.shape[2:])

    def final(self, state: Tensor) -> Tensor:
        """[N, HV, K, V] of the last copies."""
        last = self.halved[:, -1:] if self.offsets is None else self._at_ends(self.offsets)
        return _doubled(state, last.flatten()).chunk(self.copies)[-1]

    def _at_ends(self, offsets: Tensor) -> Tensor:
        """How often the state of every sequence of a pack was halved; of one without tokens, 0."""
        ends = self.halved[0, offsets[1:].long() - 1]
        return ends.masked_fill(offsets.diff() == 0, 0)


@dataclass(frozen=True)
class ProductToken:
    """One token of the product: up to n tokens of the delta rule, of which the first has the gate.

    Args:
        tokens: rows of B T, in a row; idle: one that is not written.
        n: steps.
        idle: whether it stands for none, behind a sequence.
    """

    tokens: range
    n: int
    idle: bool = False

    @classmethod
    def laid(cls, groups: Sequence[range], n: int, length: int) -> list[Self]:
        """Those of one sequence, filled up to a length."""
        rest = max(0, length - len(groups))
        idle = [cls(groups[-1], n, idle=True)] if groups else []
        return [*(cls(group, n) for group in groups), *idle * rest]

    @property
    def _first(self) -> int:
        """Its first step that is written."""
        return self.tokens[0] % (self.n - len(self.tokens) + 1)

    @property
    def steps(self) -> list[int]:
        last = len(self.tokens) - 1
        return [self.tokens[min(max(i - self._first, 0), last)] for i in range(self.n)]

    @property
    def real(self) -> list[bool]:
        return [not self.idle and 0 <= i - self._first < len(self.tokens) for i in range(self.n)]

    @property
    def decay(self) -> int:
        return -1 if self.idle else self.tokens[0]

    def shown(self, last: Collection[int]) -> bool:
        """Whether it gives the o of its token; of those in `last` groups do."""
        return not self.idle and (len(self.tokens) > 1 or self.tokens[-1] not in last)


def _still_groups(span: tuple[int, int], still: Sequence[bool], n: int) -> list[range]:
    """A sequence cut before every token that decays, and after n."""
    groups = list[range]()
    for t in range(*span):
        if groups and still[t] and len(groups[-1]) < n:
            groups[-1] = range(groups[-1][0], t + 1)
        else:
            groups.append(range(t, t + 1))
    return groups


def _shifted(
    span: tuple[int, int], shift: int, n: int, *, even: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps of one sequence after `shift` steps of beta 0, which are its own, and how often the
    state was halved before each token of the product.

    Args:
        even: whether there are as many as after n - 1, since rows of a batch have one length.
    """
    first, end = span
    length = end - first
    tokens = -(-(length + (n - 1 if even else shift)) // n) if length else 0
    at = torch.arange(tokens * n) - shift
    halved = torch.isin(torch.arange(tokens), torch.tensor(HALVED)).cumsum(0)
    return first + at.clamp(0, length - 1), (at >= 0) & (at < length), halved


def _doubled(x: Tensor, often: Tensor) -> Tensor:
    """x times a power of two, exactly."""
    factor = torch.exp2(often.float()).to(x.dtype)
    return x * factor.view(*factor.shape, *[1] * (x.ndim - factor.ndim))


def _taken(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of [B, T, ...]; their gradients are summed in fp32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).flatten(0, 1)[rows].to(x.dtype)
