"""Whether a comparison is conclusive: it must reject outputs that are plainly wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

SEED: Final = 1
"""Of the order that rows are shuffled to: the same in every run."""
EMPTY: Final = "empty"


def negative_controls(
    exact: Tensor, zero: Tensor, passes: Callable[[Tensor], bool]
) -> tuple[str, ...]:
    """Which wrong outputs a comparison would pass: "zeros", the "negated" output, one with its rows
    "shuffled"; "empty" has no elements.

    An output that equals the exact one is not a negative control. So where the exact value is 0
    throughout nothing is: zeros are right there, and a comparison that demands them is evidence.

    Args:
        exact: float64.
        zero: where 0 is proven, and demanded.
        passes: whether an output whose error is the argument would be within tolerance.
    """
    if not exact.numel():
        return (EMPTY,)
    return tuple(
        name
        for name, wrong in _plainly_wrong(exact)
        if _differs(wrong, exact, zero) and passes(wrong - exact)
    )


def _plainly_wrong(exact: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "zeros", torch.zeros_like(exact)
    yield "negated", -exact
    rows = exact.flatten(0, -2) if exact.ndim > 1 else exact[:, None]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).to(
        exact.device
    )
    # Along one cycle, so that no row stays where it is.
    shuffled = torch.empty_like(rows).index_copy_(0, order, rows[order.roll(1)])
    yield "shuffled", shuffled.view_as(exact)


def _differs(wrong: Tensor, exact: Tensor, zero: Tensor) -> bool:
    """Whether it is not the exact output, and not refused for a lost zero."""
    return not torch.equal(wrong, exact) and not bool((zero & (wrong != 0)).any())
