"""Smoke has problems in which axes have the same size: every two that can, once together with all
others and once by themselves; a kernel that recognises an axis by its size errs there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Final

import pytest

import kdaverify as kv
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import REFUSED, Status
from kdaverify.operators.gated_norm.panel import named_problems as norms
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.short_conv import shapes
from kdaverify.operators.short_conv.panel import named_problems as convolutions
from kdaverify.operators.short_conv.problem import ShortConvProblem
from tests.operators.convolutions import RIGHT

Sizes = Mapping[str, int]
DEPENDENT: Final = ({"taps", "columns"}, {"sequences", "offsets"})
"""One is the other and 1."""


def of_batch(p: ShortConvProblem) -> Sizes:
    return {"B": p.B, "T": p.T, "D": p.D, "taps": p.W, "columns": p.W - 1}


def of_pack(p: ShortConvProblem) -> Sizes:
    sequences = {"sequences": p.N, "offsets": p.N + 1}
    return {"T": p.T, "D": p.D, "taps": p.W, "columns": p.W - 1, **sequences}


def of_norm(p: GatedNormProblem) -> Sizes:
    leading = {4: {"B": p.B, "T": p.T, "H": p.H}, 3: {"rows": p.B * p.T, "H": p.H}}
    return {**leading.get(p.rank, {"rows": p.B * p.T * p.H}), "V": p.V}


def panels() -> Iterator[tuple[str, list[Sizes]]]:
    conv, norm = convolutions("fp32", "smoke").values(), norms("fp32", "smoke").values()
    yield "batches", [of_batch(p) for p in conv if not p.packed]
    yield "packs", [of_pack(p) for p in conv if p.packed]
    for rank in (2, 3, 4):
        yield f"norms of {rank} axes", [of_norm(p) for p in norm if p.rank == rank]


PANELS: Final = dict(panels())


def implied(a: str, b: str) -> bool:
    return {a, b} in DEPENDENT


@pytest.mark.parametrize("name", PANELS)
def test_every_two_axes_that_can_have_one_size_have_it_by_themselves(name: str) -> None:
    found = PANELS[name]
    pairs = [pair for pair in combinations(found[0], 2) if not implied(*pair)]
    lacking = [
        pair
        for pair in pairs
        if not any(
            sizes[pair[0]] == sizes[pair[1]]
            and [*sizes.values()].count(sizes[pair[0]]) == 2
            and sizes[pair[0]] > 1
            for sizes in found
        )
    ]
    assert pairs and not lacking


@pytest.mark.parametrize("name", PANELS)
def test_all_that_can_have_one_size_have_it_together(name: str) -> None:
    most = len({*PANELS[name][0]} - {"columns", "offsets"})
    assert any(max(map([*s.values()].count, s.values())) >= most for s in PANELS[name])


def test_rows_of_a_norm_are_a_square_and_several_of_them() -> None:
    found = norms("fp32", "smoke").values()
    times = {
        (p.rank, p.B * p.T * p.H // p.V) for p in found if p.B * p.T * p.H % p.V == 0 < p.V - 1
    }
    assert times >= {(rank, 1) for rank in (2, 3, 4)}
    assert all(any(n > 3 for of, n in times if of == rank) for rank in (2, 3, 4))


def panel_outcomes(adapter: Any, *, taps: int) -> list[Outcome]:
    problems = [p for _, p in adapter.operator.panel(adapter, "smoke") if taps == p.W]
    return [
        outcome
        for p in problems
        for name, detail in (("forward", {}), ("gradients", {"of": "both"}))
        for outcome in check(name, adapter, p, detail)
    ]


def up_to_four(**options: Any) -> Any:
    @kv.kernel(op="short_conv", **options)
    def short_conv(x: Any, weight: Any, bias: Any, *, initial_state: Any, activation: Any) -> Any:
        if weight.shape[1] > shapes.USUAL_TAPS:
            raise RuntimeError("only width 2, 3 and 4")
        return RIGHT(x, weight, bias, initial_state, None, activation)

    return short_conv


def test_more_taps_that_a_kernel_declines_are_not_tested() -> None:
    found = panel_outcomes(up_to_four(), taps=7)
    assert {x.status for x in found} == {Status.SKIP}
    assert found[0].message.startswith(f"{REFUSED}W = 7 (") and "only width" in found[0].message


def test_more_taps_that_a_kernel_declares_are_tested() -> None:
    found = panel_outcomes(up_to_four(widths=(4, 5, 16)), taps=5)
    assert {x.status for x in found} == {Status.ERROR}
    assert panel_outcomes(up_to_four(widths=(4, 5, 16)), taps=16)


def test_widths_of_up_to_four_are_tested_alone() -> None:
    adapter = up_to_four(widths=(2, 3, 4))
    assert {p.W for _, p in adapter.operator.panel(adapter, "smoke")} == {2, 3, 4}
