"""Covering arrays of sizes: what kernels of attention choose paths, splits and programs by.

Every problem of the panel is about a size or two. A decode kernel that combined splits with the
weights of the first KV head erred from two KV heads and 129 keys on: each was tested without the
other, and it was accepted. Of six such ports each needed two to five sizes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem
from kdaverify.problems.covering_array import Row, covering_array

Levels = Mapping[str, Sequence[Any]]
Made = Callable[[Mapping[str, Any]], Any]
NARROW: Final = (24, 16)
WIDTHS: Final = (64, 128, 256)
"""Columns that kernels are compiled for, of implementations that declare none."""
FEW: Final = 5
"""Queries that a kernel of decode takes together, up to 8."""
MANY: Final = 66
"""Queries of more than one tile of 64."""
SQUARE: Final = 129
"""Keys up to which there are as many queries, where there are many: top-left masks are tested on
squares alone."""
COMMON: Final[Levels] = {
    # a program of 16 heads holds parts of two groups where these are larger and no multiple of it
    "group": (1, 2, 8, 20),
    "h_kv": (1, 2, 3),
    "keys": (64, 128, 256, 512, 1024),
    "end": (0, -1, 1),
    "causal": (False, True),
    "sink": (None, "level"),
    # where the keys at the edges of tiles win, one too many or too few shows; below all logits of
    # -1000 a maximum of no keys
    "logits": ("edges", "normal", "low"),
}
DENSE: Final[Levels] = {
    "requests": ("batch", "pack", "pack of one query each"),
    "queries": (1, FEW, MANY),
}
DECODE: Final[Levels] = {
    "requests": ("of one length", "of unlike lengths"),
    # one draft token has a kernel of its own
    "queries": (1, 2, FEW),
    "page": (16, 64, 1),
}
BOUND: Final = ("requests", "queries", "causal")
GROWING: Final = ("keys", "group", "h_kv", "widths")
"""The axes that say whether there is such a problem, and what it costs."""
SECONDS: Final = {"smoke": 0.15, "acceptance": 1.0, "nightly": 4.0}
"""The largest cost of a problem: what leaves every pair possible, and nearly every triple."""


@dataclass(frozen=True)
class SizeSpace:
    """The sizes that can be combined for an implementation.

    Args:
        adapter: the implementation: what it does not take is in no problem.
        axes: the levels of each axis, the simplest first.
        made: the problem with these levels; None where they exclude each other.
        most: the largest cost of a problem.
    """

    adapter: Adapter
    axes: Levels
    made: Made
    most: float

    def problems(self, strength: int) -> list[Any]:
        """Every possible combination of `strength` levels is in one of them."""
        if not self._levels:
            return []
        axes = {axis: [*levels] for axis, levels in self._levels.items()}
        rows = covering_array(
            axes, strength, bound=BOUND, growing=GROWING, possible=self._is_possible
        )
        found = [self._problem(row, seed) for seed, row in enumerate(rows)]
        return [x for x in found if x is not None and self.adapter.supports(x) is None]

    @cached_property
    def _levels(self) -> dict[str, dict[str, Any]]:
        """By axis and name, those of a problem in the domain first; of an axis that is free those
        alone that some problem has. None where no problem is in the domain.
        """
        found = {axis: {str(x): x for x in levels} for axis, levels in self.axes.items()}
        free = [axis for axis in found if axis not in (*BOUND, *GROWING)]
        rows = (
            dict(zip((*free, *BOUND), some, strict=True))
            for some in product(*(found[x] for x in (*free, *BOUND)))
        )
        # a sink may have to be there, a mask always or never
        first = next((row for row in rows if self._made(found, row, 0)), None)
        if first is None:
            return {}
        found = {
            axis: {first[axis]: levels[first[axis]], **levels} if axis in first else levels
            for axis, levels in found.items()
        }
        bound = [
            dict(zip(BOUND, some, strict=True)) for some in product(*(found[x] for x in BOUND))
        ]
        for axis in free:
            found[axis] = {
                name: x
                for name, x in found[axis].items()
                if any(self._made(found, {**some, axis: name}, 0) for some in bound)
            }
        return found

    def _is_possible(self, row: Row) -> bool:
        return self._problem(row, 0) is not None

    def _problem(self, row: Row, seed: int) -> Any:
        return self._made(self._levels, row, seed)

    def _made(self, known: Mapping[str, Mapping[str, Any]], row: Row, seed: int) -> Any:
        """The problem of a row, the simplest level where it has none; None outside the domain."""
        chosen = {
            axis: levels[row[axis]] if axis in row else next(iter(levels.values()))
            for axis, levels in known.items()
        }
        wanted, operator = self.made({**chosen, "seed": seed}), self.adapter.operator
        if wanted is None or operator.cost(wanted) > self.most:
            return None
        inside = operator.within(self.adapter, wanted)
        return inside if _sizes(inside) == _sizes(wanted) else None


def _sizes(problem: Any) -> dict[str, Any]:
    """All fields but those that are declared, and change no size."""
    return problem.model_dump(exclude={"unused", "lse_includes_sink"})


def _shared(levels: Mapping[str, Any]) -> dict[str, Any]:
    d_k, d_v = levels["widths"]
    same = ("dtype", "seed", "h_kv", "causal", "sink", "logits")
    return {
        **{name: levels[name] for name in same},
        "H": levels["group"] * levels["h_kv"],
        "d_k": d_k,
        "d_v": d_v,
    }


def _dense(levels: Mapping[str, Any]) -> AttentionProblem | None:
    s_k, s_q, fields = levels["keys"] + levels["end"], levels["queries"], _shared(levels)
    if s_q == MANY and s_k <= SQUARE:
        s_q = s_k
    if levels["requests"] == "batch":
        return AttentionProblem(B=2, s_q=s_q, s_k=s_k, **fields)
    one_each = levels["requests"] == "pack of one query each"
    if one_each and s_q > 1:
        return None
    # a request without queries, and others that are far shorter
    q, k = ((1, 1, 1), (33, s_k, 1)) if one_each else ((2, 0, s_q), (33, 5, s_k))
    return AttentionProblem(q_lengths=q, k_lengths=k, s_q=sum(q), s_k=sum(k), **fields)


def _decode(levels: Mapping[str, Any]) -> MlaDecodeProblem:
    s_k, unlike = levels["keys"] + levels["end"], levels["requests"] == "of unlike lengths"
    lengths = (1, s_k, 0, 65) if unlike else (s_k, s_k)
    return MlaDecodeProblem(
        k_lengths=lengths, s_q=levels["queries"], page=levels["page"], **_shared(levels)
    )


def wide(adapter: Adapter) -> tuple[int, ...]:
    """Columns of values that a kernel may be compiled for: 64, 128, the most that it declares."""
    declared = () if adapter.takes is None else adapter.takes.widths
    if not declared:
        return WIDTHS
    nearest = {min(declared, key=lambda own: abs(own - width)) for width in WIDTHS[:2]}
    return tuple(sorted({*nearest, max(declared)}))


def widths(adapter: Adapter, problem: Any, columns: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of widths of keys and values that an implementation takes, near some columns."""
    # rows of a latent cache are longer than the values in them, by an eighth in models
    pairs = [NARROW, *((n + (n // 8 if problem.op != "attention" else 0), n) for n in columns)]
    near = (_near(adapter, problem, *pair) for pair in pairs)
    return [*dict.fromkeys((found.d_k, found.d_v) for found in near if found is not None)]


def _near(adapter: Adapter, problem: Any, d_k: int, d_v: int) -> Any:
    """The nearest problem in the domain; None where no cache of its format has such columns."""
    try:
        wanted = problem.replace(d_k=d_k, d_v=d_v)
    except ValueError:
        return None
    return adapter.operator.within(adapter, wanted)


def dense_sizes(adapter: Adapter, profile: str) -> SizeSpace:
    return _space(adapter, profile, DENSE, _dense, AttentionProblem())


def decode_sizes(adapter: Adapter, profile: str) -> SizeSpace:
    return _space(adapter, profile, DECODE, _decode, MlaDecodeProblem())


def _space(adapter: Adapter, profile: str, own: Levels, made: Made, plain: Any) -> SizeSpace:
    start = plain.replace(dtype=adapter.dtypes[0])
    axes: Levels = {
        "dtype": adapter.dtypes,
        "widths": widths(adapter, start, wide(adapter)),
        **COMMON,
        **own,
    }
    if "page" in axes:
        pages = (adapter.operator.within(adapter, start.replace(page=n)).page for n in axes["page"])
        axes = {**axes, "page": [*dict.fromkeys(pages)]}
    return SizeSpace(adapter, axes, made, SECONDS[profile])
