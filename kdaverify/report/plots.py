"""Pictures of studies in plain SVG: a Pareto front of bytes moved against error / tolerance, and
error / tolerance against the number of splits of a decode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kdaverify.budgets.designs.design import KIB
from kdaverify.checks.mailboxes.search import Study
from kdaverify.operators.attention.splits.study import PARTIALS, SPLITS, SplitTrial
from kdaverify.report.splits import worst_of

WIDTH, HEIGHT, MARGIN = 640, 400, 56
# Decades of the error axis below and above the limit.
BELOW, ABOVE = 1.0, 2.5


def front_svg(study: Study) -> str:
    """Every finite trial as a dot, the front a line, the limit dashed, errors logarithmic."""
    trials = [trial for trial in study.trials if math.isfinite(trial.share)]
    most = max(study.moved(trial) for trial in trials) / KIB

    def x(kib: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * kib / most

    def y(share: float) -> float:
        decades = math.log10(max(share, 1e-9) / study.limit)
        return MARGIN + (HEIGHT - 2 * MARGIN) * (ABOVE - min(max(decades, -BELOW), ABOVE)) / (
            ABOVE + BELOW
        )

    dots = [dot(x(study.moved(t) / KIB), y(t.share), "#999", 2.5) for t in trials]
    own = (
        [dot(x(study.moved(study.own) / KIB), y(study.own.share), "#c33", 5)]
        if math.isfinite(study.own.share)
        else []
    )
    line = " ".join(f"{x(study.moved(t) / KIB):.1f},{y(t.share):.1f}" for t in study.front)
    title = (
        f"{study.bench.design.name}, {study.part}: KiB moved a chunk against error / tolerance"
        " (red: as designed)"
    )
    ticks = [
        text(x(most * i / 4), HEIGHT - MARGIN + 18, f"{most * i / 4:.0f} KiB") for i in range(5)
    ]
    shares = [
        text(MARGIN - 26, y(study.limit * 10.0**i) + 4, f"{study.limit * 10.0**i:g}")
        for i in (-1, 0, 1, 2)
    ]
    limit = y(study.limit)
    dashed = (
        f'<path d="M{MARGIN} {limit:.1f}H{WIDTH - MARGIN}" stroke="#c33" stroke-dasharray="6 4"/>'
    )
    front = f'<polyline points="{line}" fill="none" stroke="#06c" stroke-width="2"/>'
    body = "\n".join([text(WIDTH / 2, 24, title), dashed, *dots, *own, front, *ticks, *shares])
    return svg(body)


def svg(body: str) -> str:
    """The picture around some elements."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'
    )


def dot(x: float, y: float, colour: str, radius: float) -> str:
    """A filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'


def text(x: float, y: float, words: str) -> str:
    """Words about a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{words}</text>'


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
