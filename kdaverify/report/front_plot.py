"""A Pareto front as a picture: bytes moved against error / tolerance, in plain SVG."""

from __future__ import annotations

import math

from kdaverify.budgets.designs.design import KIB
from kdaverify.checks.mailboxes.search import Study

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
