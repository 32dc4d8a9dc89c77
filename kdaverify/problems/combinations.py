"""Covering arrays of problems: pairs and triples of fault-relevant properties in few.

Random problems hardly ever combine gradients, several packed sequences and K > 32, or 1,024 tokens,
several heads and a given state: faults of released kernels lay there. Source: Kuhn, Wallace, Gallo,
"Software fault interactions and implications for software testing", IEEE TSE 30 (2004): nearly all
faults need at most three conditions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from kdaverify.problems.compiled_shapes import CONSTANTS, pool
from kdaverify.problems.cost import seconds
from kdaverify.problems.covering_array import Combination, combined, covering_array
from kdaverify.problems.domain import Domain
from kdaverify.problems.problem import Problem

Direction = Literal["forward", "resume", "gradients of o", "gradients of both"]
Levels = dict[str, str]

STRENGTH: Final = {"smoke": 2, "acceptance": 3, "nightly": 3}
"""How many levels occur together in every way."""
MANY: Final = 100
"""Sequences that are many: scratch sized by tokens and addressed by padded chunks overflowed where
a pack had 127 (WU2)."""
LONG: Final = 1024
"""Tokens that are many: tiles of kernels end there (CONV-block), and faults show from there on in
one width or number of heads (COMB1, COMB2)."""
_CHUNK: Final = 64
"""Tokens of a chunk: a sequence is below one, whole ones, or has a tail. One of a single token may
be left to a decode step: such a port that stopped beta at 1 there was accepted."""

_PLAIN: Final[dict[str, Any]] = {
    "B": 1, "T": 1, "H": 1, "HV": 1, "K": 16, "V": 16,
    "gate": "log-sigmoid", "key": "random", "beta": "uniform", "state": "absent", "value": "normal",
}  # fmt: skip
_LENGTHS: Final = (1, 40, 128, 65, 209, 1057)
"""One for each level: one token, below a chunk, whole chunks, those and a token, those and a tail,
many."""
_WIDTHS: Final = (16, 24, 33, 64, 100, 128)
COMPILED_WIDTHS: Final = (16, 33, 64, 100, 128)
"""Of kernels that are compiled for each: 24 is a tail below 32, as 100 is below 128."""
_GATES: Final = (
    "log-sigmoid", "zero", "slow", "bound-20", "spread", "mixed", "deep-resets", "hard-reset",
)  # fmt: skip
_KEYS: Final = ("random", "coherent-0.9", "identical", "one-hot", "tiny")
_BETAS: Final = ("uniform", "one", "near-one", "mixed", "two")
"""None is 0 at every token: nothing of such a row depends on v and k, and a kernel that read the
values of another head at 1,024 tokens passed the one row of these sizes."""
_UNUSED: Final = 17
"""Tokens past the last offset of a pack: more than a row of 16."""


def _sequences(p: Problem) -> str:
    if p.lengths is None:
        return "one" if p.B == 1 else "batch"
    if p.N >= MANY:
        return f"{MANY} and more packed"
    return "packed" if sum(p.lengths) == p.T else "packed, tokens behind"


def _length(p: Problem) -> str:
    longest = max(p.lengths or (p.T,))
    if longest == 1:
        return "1"
    if longest >= LONG:
        return f"{LONG} and more"
    if longest < _CHUNK:
        return "below a chunk"
    tails = {0: "whole chunks", 1: "chunks and a token"}
    return tails.get(longest % _CHUNK, "chunks and a tail")


AXES: Final[Mapping[str, Callable[[Problem], str]]] = {
    "dtype": lambda p: p.dtype,
    "sequences": _sequences,
    "length": _length,
    "K": lambda p: str(p.K),
    "V": lambda p: str(p.V),
    "HV / H": lambda p: str(p.HV // p.H),
    "state": lambda p: p.state,
    "gate": lambda p: p.gate,
    "key": lambda p: p.key,
    "beta": lambda p: p.beta,
    "scale": lambda p: "K^-1/2" if p.scale is None else f"{p.scale:g}",
}
"""What a problem is on each axis; the direction is one more."""


@dataclass(frozen=True)
class CombinationRow:
    """One row of a covering array: a problem, and what is computed of it."""

    problem: Problem
    direction: Direction

    @property
    def levels(self) -> Levels:
        """By axis."""
        return {
            **{axis: level(self.problem) for axis, level in AXES.items()},
            "direction": self.direction,
        }

    @property
    def kernel(self) -> tuple[str, ...]:
        """What a compiler makes a kernel for, where it makes one for every width and format."""
        levels = self.levels
        return (
            *(kind(levels[axis]) for axis, kind in CONSTANTS.items()),
            str(self.direction.startswith("gradients")),
        )

    def combinations(self, strength: int) -> frozenset[Combination]:
        """Those of `strength` levels that occur in it."""
        return frozenset(combined(self.levels, strength))


@dataclass(frozen=True)
class Space:
    """What can be combined for an implementation.

    Args:
        domain: of its problems.
        dtypes: its formats.
        dense, packed: what can be computed of a dense problem, and of a pack.
        most_expensive: the largest `cost` of a problem, by format and direction.
        resumable: whether a dense problem can be cut in two.
        compiled: whether the kernel is compiled for formats, widths and heads: few occur then.
        backward: the domain of its backward, if smaller: of cuDNN's, 192 of 8,332 triples were said
            to be possible whose problems were changed to others before they were judged.
    """

    domain: Domain
    dtypes: tuple[str, ...]
    dense: tuple[Direction, ...]
    packed: tuple[Direction, ...]
    most_expensive: Callable[[str, Direction], float]
    resumable: Callable[[Problem], bool]
    compiled: bool = False
    backward: Domain | None = None

    def rows(self, strength: int) -> list[CombinationRow]:
        """A covering array: every `strength`-combination of the space's levels is in a row."""
        options = self._options()

        def possible(levels: Mapping[str, str]) -> bool:
            row = self._row(options, levels)
            return self._is_possible(row) and levels.items() <= row.levels.items()

        axes = {axis: list(levels) for axis, levels in options.items()}
        cover = partial(
            covering_array,
            axes,
            strength,
            bound=self._bound(options),
            growing=_GROWING,
            possible=possible,
            beside=_forward,
        )
        made = cover(begun=cover(pool=pool(axes, strength)) if self.compiled else ())
        return [self._row(options, levels, seed=number) for number, levels in enumerate(made)]

    def _bound(self, options: dict[str, dict[str, dict[str, Any]]]) -> tuple[str, ...]:
        """The axes that decide whether there is a row."""
        of_packs = () if self.domain.packed_states else ("state",)
        of_backward = (
            axis
            for axis in AXES.keys() & options.keys()
            if any(
                self._differentiated(self._row(options, {axis: level})).levels[axis] != level
                for level in options[axis]
            )
        )
        return tuple(dict.fromkeys((*_BOUND, *of_packs, *sorted(of_backward))))

    def _differentiated(self, row: CombinationRow) -> CombinationRow:
        """The row itself inside the domain of the backward, else the nearest one that is."""
        return (
            row if self.backward is None else replace(row, problem=self.backward.fit(row.problem))
        )

    def _options(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By axis, the fields of a problem for each level that the domain leaves."""
        base, usual = plain(self.dtypes[0]), COMPILED_WIDTHS if self.compiled else _WIDTHS
        widths = sorted(self.domain.widths) or usual
        candidates: dict[str, Iterable[dict[str, Any]]] = {
            "dtype": ({"dtype": dtype} for dtype in self.dtypes),
            "length": ({"T": length} for length in _LENGTHS),
            "K": ({"K": width} for width in widths),
            **({} if self.domain.square else {"V": ({"V": width} for width in widths)}),
            "HV / H": ({"H": H, "HV": HV} for H, HV in ((1, 1), (1, 2), (1, 3))),
            "state": ({"state": state} for state in ("absent", "random", "large")),
            "gate": ({"gate": gate} for gate in _GATES),
            "key": ({"key": key} for key in _KEYS),
            "beta": ({"beta": beta} for beta in _BETAS),
            "scale": ({"scale": scale} for scale in (None, 0.5)),
        }
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for axis, fields in candidates.items():
            for one in fields:
                found.setdefault(axis, {}).setdefault(
                    AXES[axis](self.domain.fit(base.replace(**one))), one
                )
        found["sequences"] = {
            name: {} for name in _SEQUENCES if self.domain.packed or "packed" not in name
        }
        found["direction"] = {direction: {} for direction in self.dense}
        return found

    def _row(
        self,
        options: dict[str, dict[str, dict[str, Any]]],
        levels: Mapping[str, str],
        seed: int = 0,
    ) -> CombinationRow:
        fields: dict[str, Any] = {**_PLAIN, "dtype": self.dtypes[0]}
        for axis, level in levels.items():
            fields |= options[axis][level]
        fields |= _SEQUENCES[levels.get("sequences", "one")](fields["T"])
        fitted = self.domain.fit(Problem.model_validate({**fields, "seed": seed}))
        direction: Any = levels.get("direction", "forward")
        return CombinationRow(fitted, direction)

    def _is_possible(self, row: CombinationRow) -> bool:
        problem = row.problem
        if problem.beta == "mixed" and row.levels["length"] == "1":
            # one beta is not mixed, and where it is 0 all outputs can be
            return False
        if row.direction not in (self.packed if problem.packed else self.dense):
            return False
        if row.direction == "resume" and (problem.T >= LONG or not self.resumable(problem)):
            # of many tokens both parts are shorter, and the kernel gets no long call
            return False
        gradients = row.direction.startswith("gradients")
        if gradients and self._differentiated(row).levels != row.levels:
            return False
        return _seconds(problem) <= self.most_expensive(problem.dtype, row.direction)


def _forward(row: Mapping[str, str]) -> Levels | None:
    """The forward beside a row of gradients: a last chunk of one token whose beta stopped at 1 was
    in gradients alone, and a kernel without a backward got none of their combinations.
    """
    gradients = row["direction"].startswith("gradients")
    return {**row, "direction": "forward"} if gradients else None


def _seconds(p: Problem) -> float:
    """The `cost` of a problem in whole chunks, as reference kernels compute it."""
    chunks = sum(-(-length // _CHUNK) for _, _, length in p.spans)
    return seconds(tokens=max(p.B * p.T, chunks * _CHUNK if p.packed else 0), HV=p.HV, K=p.K, V=p.V)


def plain(dtype: str) -> Problem:
    """The simplest row: one token of one narrow head."""
    return Problem.model_validate({**_PLAIN, "dtype": dtype, "seed": 0})


def _batch(length: int) -> dict[str, Any]:
    return {"B": 2, "T": length}


def _packed(length: int, behind: int = 0) -> dict[str, Any]:
    lengths = (0, length, min(length, 5), 0, 1)
    return {"T": sum(lengths) + behind, "lengths": lengths}


def _many(length: int) -> dict[str, Any]:
    # Nearly all are empty: the others cost a chunk each.
    lengths = (length, *(*(0,) * 9, 1) * (MANY // 10))
    return {"T": sum(lengths), "lengths": lengths}


_SEQUENCES: Final[Mapping[str, Callable[[int], dict[str, Any]]]] = {
    "one": lambda length: {"T": length},
    "batch": _batch,
    "packed": _packed,
    "packed, tokens behind": lambda length: _packed(length, _UNUSED),
    f"{MANY} and more packed": _many,
}
_BOUND: Final = ("sequences", "direction", "length", "dtype", "beta")
_GROWING: Final = ("K", "V", "HV / H")
"""The axes that say whether there is such a problem, and what it costs."""


def coverage(
    judged: Iterable[CombinationRow], space: Iterable[CombinationRow], strength: int
) -> tuple[int, int]:
    """How many combinations of `strength` levels were judged, and how many there are.

    Args:
        judged: the rows that were.
        space: a covering array of at least this strength: all else is impossible.
    """
    possible = frozenset[Combination]().union(*(row.combinations(strength) for row in space))
    found = frozenset[Combination]().union(*(row.combinations(strength) for row in judged))
    return len(found & possible), len(possible)
