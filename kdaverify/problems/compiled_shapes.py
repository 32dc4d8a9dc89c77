"""Few formats, widths and numbers of heads, for kernels that are compiled for each of them.

Of the time that an acceptance of FLA's kernels took on 16 cores, five sixths were Triton's
compiler: 813 cases took 5,300 s with an empty cache of compiled kernels, 890 s with a filled one,
and 1,885 cases had 602 sets of constants. Values, gates, lengths and directions are no constants
of a kernel, so that they vary as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from typing import Final, NamedTuple

from kdaverify.problems.covering_array import Row, covering_array
from kdaverify.problems.problem import Problem

CONSTANTS: Final[Mapping[str, Callable[[str], str]]] = {
    "dtype": str,
    "K": str,
    "V": str,
    "HV / H": str,
    "sequences": lambda level: "packed" if "packed" in level else "dense",
    "state": lambda level: "absent" if level == "absent" else "given",
}
"""The axes of a covering array that a compiled kernel depends on, and what it takes of a level."""


class HeadsAndWidths(NamedTuple):
    """Heads and widths of a random problem."""

    H: int
    HV: int
    K: int
    V: int


_HEADS: Final = ((1, 1), (2, 4), (3, 3), (2, 6), (1, 2), (2, 2), (3, 6), (1, 3))
"""H and HV: every number of heads, and every ratio, that random problems have."""
_FEW: Final = 2
"""Widths of which every pair is taken: of more, each is K once and V once."""


def compiled_for(problem: Problem) -> tuple[object, ...]:
    """What a kernel is compiled for, beside the format."""
    p = problem
    return p.H, p.HV, p.K, p.V, p.packed, p.state == "absent"


def shapes(widths: Sequence[int]) -> list[HeadsAndWidths]:
    """Heads and widths of random problems: every pair of two widths, else each as K and V.

    Args:
        widths: the smallest first.
    """
    if len(widths) <= _FEW:
        pairs = list(product(widths, repeat=2))
    else:
        pairs = list(zip(widths, reversed(widths), strict=True))
    return [
        HeadsAndWidths(*heads, *pair) for heads, pair in zip(cycle(_HEADS), pairs, strict=False)
    ]


def pool(axes: Mapping[str, Sequence[str]], strength: int) -> list[Row]:
    """Partial rows of few compiled kernels, with every `strength`-combination of constants.

    Backward kernels are the larger part, and the direction is one of the levels that a row
    combines: they need every combination of one constant less.

    Args:
        axes: of the covering array whose rows are to agree with one of them.
    """
    named = {
        axis: list(dict.fromkeys(map(kind, axes[axis])))
        for axis, kind in CONSTANTS.items()
        if axis in axes
    }
    both_ways = covering_array(named, min(strength, len(named)) - 1)
    every = covering_array(named, min(strength, len(named)), begun=both_ways)
    forward = [way for way in axes["direction"] if not way.startswith("gradients")]
    return [
        *(row for chosen in both_ways for row in _with_levels(axes, chosen)),
        *(
            {**row, "direction": way}
            for chosen in every[len(both_ways) :]
            for row in _with_levels(axes, chosen)
            for way in forward
        ),
    ]


def _with_levels(axes: Mapping[str, Sequence[str]], chosen: Row) -> list[Row]:
    """The rows whose levels are of the chosen kinds."""
    levels = (
        [level for level in axes[axis] if CONSTANTS[axis](level) == kind]
        for axis, kind in chosen.items()
    )
    return [dict(zip(chosen, some, strict=True)) for some in product(*levels)]
