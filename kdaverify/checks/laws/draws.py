"""The problems that a law is tested on."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from kdaverify.adapters.base import Adapter
from kdaverify.checks.laws.law import Law
from kdaverify.problems import Bounds, Problem, problems

JUDGED: Final = 1 / 16
"""A problem whose results are held against the truth costs as much as this share of one that is
generated for a single test."""

SHORTEST: Final = 3
"""Tokens, padding included: shorter ones show little."""

SCALES: Final = (None, 0.5, 1.0, 0.0883883461356163, 3.0)
"""Powers of two, K^-1/2 of K = 128 in fp32, and more than 1: where a kernel takes any."""


@st.composite
def law_problems(
    draw: st.DrawFn, law: Law, adapter: Adapter, dtype: str, bounds: Bounds
) -> Problem:
    """Problems that the law can be tested on: dense ones where a kernel takes no packs and the law
    needs none, at a scale that it takes.
    """
    tested: Bounds = {**bounds, "max_cost": bounds["max_cost"] * (JUDGED if law.judged else 1)}
    plain = draw(
        problems(dtype=dtype, **law.draws, **tested).filter(
            lambda p: p.T >= SHORTEST and law.untestable(p) is None
        )
    )
    scales, layouts = (draw(st.sampled_from(SCALES)), None), (plain.lengths, None)
    tried = [plain.replace(scale=scale, lengths=lengths) for lengths in layouts for scale in scales]
    return next(
        (p for p in tried if law.untestable(p) is None and adapter.supports(p) is None), plain
    )
