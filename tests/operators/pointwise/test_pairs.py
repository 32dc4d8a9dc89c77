"""The fixed problems of short convolution and gated RMSNorm have every pair of properties: a kernel
with a path of its own for two of them together meets that path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from kdaverify.operators.gated_norm.panel import PANEL as NORMS
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.short_conv.panel import PANEL as CONVOLUTIONS
from kdaverify.operators.short_conv.problem import ShortConvProblem
from kdaverify.operators.short_conv.shapes import USUAL_TAPS


def of_convolution(p: ShortConvProblem) -> dict[str, Any]:
    return {
        "sequences": "pack" if p.packed else "batch" if p.B > 1 else "one",
        "tokens": (
            "fewer than W"
            if p.T < p.W
            else "no whole tile"
            if p.T < 64
            else "whole tiles"
            if p.T % 64 == 0
            else "tiles and a tail"
        ),
        "channels": "odd" if p.D % 2 else "16s" if p.D % 16 == 0 else "even",
        "taps": p.W if p.W <= USUAL_TAPS else "more",
        "state": p.state,
        "bias": p.bias,
        "activation": p.activation,
    }


def of_norm(p: GatedNormProblem) -> dict[str, Any]:
    return {
        "tokens": "one" if p.T == 1 else "few" if p.T <= 16 else "many",
        "width": (
            "no head"
            if p.V <= 64
            else "a head"
            if p.V == 128
            else "a tail"
            if p.V % 128
            else "several heads"
        ),
        "rank": p.rank,
        "activation": p.activation,
        "usual eps": p.eps == 1e-6,
        "batch": p.B > 1,
        "heads": p.H > 1,
    }


@pytest.mark.parametrize(
    "rows",
    [
        [of_convolution(ShortConvProblem(**fields)) for fields in CONVOLUTIONS.values()],
        [of_norm(GatedNormProblem(**fields)) for fields in NORMS.values()],
    ],
    ids=["short_conv", "gated_rms_norm"],
)
def test_every_pair_of_properties_occurs(rows: Sequence[Mapping[str, Any]]) -> None:
    missing = [
        (a, x, b, y)
        for a, b in combinations(rows[0], 2)
        for x, y in product({row[a] for row in rows}, {row[b] for row in rows})
        if not any(row[a] == x and row[b] == y for row in rows)
    ]
    assert not missing


def test_the_widths_of_models_occur() -> None:
    assert {fields["V"] for fields in NORMS.values()} >= {128, 256, 512, 1024, 2048}
