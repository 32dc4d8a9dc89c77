"""Faults of sizes that models have change the problem of the smoke panel that is past their size,
and no smaller one.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kdaverify.adapters.registry import find
from kdaverify.faults.attention.sizes import FAULTS
from kdaverify.operators.attention.panel import decode_problems, dense_problems, merge_problems
from kdaverify.operators.attention.sparse_panel import sparse_problems

PANELS: Final[dict[str, Any]] = {
    "attention": dense_problems,
    "mla_decode": decode_problems,
    "merge_state": merge_problems,
    "sparse_attention": sparse_problems,
}
RIGHT: Final = {
    "attention": "eager-attention",
    "mla_decode": "eager-mla-decode",
    "merge_state": "eager-merge",
    "sparse_attention": "eager-sparse-attention",
}
CASES: Final = {
    "SIZE-keys": ("keys-past-4096", "two-tiles"),
    "SIZE-rows": ("rows-past-128", "tile-plus-one"),
    "SIZE-heads": ("heads-past-64", "two-tiles"),
    "SIZE-columns": ("widths-past-128", "model-width"),
    "SIZE-requests": ("entries-past-32", "pack"),
    "SIZE-decode-requests": ("requests-past-32", "page-edges"),
    "SIZE-pages": ("tokens-past-4096", "tile-edges"),
    "SIZE-tokens": ("tokens-past-4096", "tile-edges"),
    "SIZE-entries": ("entries-past-2048", "tile-plus-one"),
    "SIZE-merge": ("many-rows", "normal"),
    "SIZE-drafts": ("drafts-past-16", "more-queries"),
    "SIZE-blocks": ("heads-across-blocks", "model-width"),
    "SIZE-packs": ("pack-of-keys-past-1024", "pack-all-keys"),
    "SIZE-spill": ("keys-past-16384", "keys-past-4096"),
    "SIZE-parts": ("tokens-past-8192", "tokens-past-4096"),
}
"""The problem that shows a fault, and one that does not."""
SHOWN: Final = 1e-2
"""Of the largest element of o; conforming bf16 kernels agree within 2^-8 of it."""
ROUNDED: Final = {"SIZE-spill": 1e-4}
"""Of faults of fp32 alone, where conforming kernels agree within 1e-6."""


def difference(fault: str, operator: str, problem: str) -> float:
    """The largest difference of o from the right kernel's, relative to its largest element."""
    call = PANELS[operator]("fp32", "smoke")[problem].inputs()
    found, right = (
        find(name).forward(call)["o"].float() for name in (f"fault:{fault}", RIGHT[operator])
    )
    return float((found - right).abs().max() / right.abs().max())


def test_averages_of_parts_that_are_nearly_equal_show_in_lse() -> None:
    kernels = [find(name) for name in ("fault:MERGE-near", "eager-merge")]
    differences = dict[str, float]()
    for name in ("near", "normal"):
        call = merge_problems("fp32", "smoke")[name].inputs()
        found, right = (kernel.forward(call)["lse"] for kernel in kernels)
        differences[name] = float((found - right).abs().max())
    assert differences["near"] > 2e-6 > differences["normal"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_shows_past_its_size_alone(fault: Any) -> None:
    (past, small), shown = CASES[fault.id], ROUNDED.get(fault.id, SHOWN)
    assert difference(fault.id, fault.operator, past) > shown
    assert difference(fault.id, fault.operator, small) < shown
