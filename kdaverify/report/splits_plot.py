"""Errors of split-KV kernels as a picture: error / tolerance against the number of splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kdaverify.operators.attention.splits.study import PARTIALS, SPLITS, SplitTrial
from kdaverify.report.front_plot import HEIGHT, MARGIN, WIDTH, dot, svg, text
from kdaverify.report.splits import worst_of

LEAST: Final = 0.1
"""Where the error axis begins."""
COLOURS: Final = ("#333", "#06c", "#080", "#c60")
RIGHT: Final = 120
"""Of the legend."""


def splits_svg(trials: Sequence[SplitTrial], contract: str) -> str:
    """One line a format of partials, the worst of all regimes and merges; both axes logarithmic."""
    finite = [trial for trial in trials if math.isfinite(trial.share)]
    top = max(10.0, 10.0 ** math.ceil(math.log10(max(trial.share for trial in finite))))

    def x(splits: int) -> float:
        return MARGIN + (WIDTH - MARGIN - RIGHT) * math.log2(splits) / math.log2(SPLITS[-1])

    def y(share: float) -> float:
        part = math.log10(max(share, LEAST) / LEAST) / math.log10(top / LEAST)
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * part

    body = [text(WIDTH / 2, 24, f"{contract}: error / tolerance against the number of splits")]
    body += [text(x(n), HEIGHT - MARGIN + 18, f"{n}") for n in SPLITS]
    decades = range(round(math.log10(top / LEAST)) + 1)
    body += [text(MARGIN - 26, y(LEAST * 10.0**n) + 4, f"{LEAST * 10.0**n:g}") for n in decades]
    limit = f"M{MARGIN} {y(1.0):.1f}H{WIDTH - RIGHT}"
    body.append(f'<path d="{limit}" stroke="#c33" stroke-dasharray="6 4"/>')
    for partial, colour in zip(PARTIALS, COLOURS, strict=True):
        own = [trial for trial in finite if trial.partial == partial.name]
        worst = [worst_of(trial for trial in own if trial.splits == n) for n in SPLITS]
        places = [(x(trial.splits), y(trial.share)) for trial in worst if trial is not None]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [dot(a, b, colour, 3) for a, b in places]
    return svg("\n".join([*body, *_legend()]))


def _legend() -> list[str]:
    rows = [*zip(PARTIALS, COLOURS, range(60, HEIGHT, 20), strict=False)]
    dots = [dot(WIDTH - RIGHT + 14, at - 4, colour, 4) for _, colour, at in rows]
    return [*dots, *(text(WIDTH - RIGHT + 70, at, partial.name) for partial, _, at in rows)]
