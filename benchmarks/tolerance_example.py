"""The worked example of the documentation: how the tolerance of one output follows from emulated
kernels.

    python -m benchmarks.tolerance_example --svg docs/tolerance.svg

Prints the figures that docs/explanation.md quotes, and draws them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import torch

from kdaverify.adapters.registry import find
from kdaverify.budgets.constants import DEVIATIONS, RMS_FACTOR, SHARP_DEVIATIONS, SHARP_FACTOR
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import standard
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem

PROBLEM: Final = Problem(
    B=1,
    T=128,
    H=2,
    HV=2,
    K=32,
    V=32,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
)
FAULT: Final = "fault:H1@0.125"
WIDTH, ROW, LEFT, TOP = 760, 26, 300, 46


@dataclass(frozen=True)
class ToleranceExample:
    """The rms errors of o on one problem, all absolute.

    Args:
        size: rms of the exact o.
        reference: of the emulated kernels that round to nearest, by name.
        samples: of the stochastic-rounding samples.
        judged: of kernels that are judged, by name.
        tolerance: of the rms error, as the verdict uses it.
    """

    size: float
    reference: dict[str, float]
    samples: list[float]
    judged: dict[str, float]
    tolerance: float

    @property
    def spread(self) -> float:
        """Standard deviation of the samples over their mean."""
        return stdev(self.samples) / fmean(self.samples)

    @property
    def by_worst(self) -> float:
        """The limit from the worst kernel or sample."""
        worst = max(*self.reference.values(), *self.samples)
        return RMS_FACTOR * (1 + DEVIATIONS * self.spread) * worst

    @property
    def by_typical(self) -> float:
        """The limit from the worst kernel or the mean sample."""
        return (
            SHARP_FACTOR
            * (1 + SHARP_DEVIATIONS * self.spread)
            * max(*self.reference.values(), fmean(self.samples))
        )


@torch.inference_mode()
def example() -> ToleranceExample:
    """Computed by the code that verdicts use."""
    eager, fmt = find("eager"), FORMATS["bf16"]
    received, contract = eager.received(PROBLEM.inputs()), eager.contract("bf16")
    emulation = emulate(received, contract, fmt)
    held = standard(received, contract, fmt, emulation)
    exact = held.exact("o")
    own = rms(exact.error(eager.forward(PROBLEM.inputs()).o.double()))
    faulty = rms(exact.error(find(FAULT).forward(PROBLEM.inputs()).o.double()))
    return ToleranceExample(
        size=rms(exact.high),
        reference={name: rms(exact.error(o)) for name, (o, _) in emulation.rounded.items()},
        samples=[rms(exact.error(o)) for o, _ in emulation.drawn],
        judged={
            "eager": own,
            "eager with 30 % more error": 1.3 * own,
            "known bug H1 at 1/8 strength": faulty,
        },
        tolerance=held.budgets["o"].allowed.rms,
    )


def table(found: ToleranceExample) -> Iterator[str]:
    """Rows of Markdown, errors in units of 1e-4."""
    yield "| quantity | rms error of `o`, 1e-4 |"
    yield "|---|---|"
    yield (
        f"| {len(found.reference)} emulated kernels of the reference ensemble |"
        f" {_span([*found.reference.values()])} |"
    )
    yield f"| {len(found.samples)} stochastic-rounding samples | {_span(found.samples)} |"
    yield f"| spread of the samples (standard deviation / mean) | {found.spread:.1%} |"
    worst, typical = (
        f"{RMS_FACTOR} (1 + {DEVIATIONS:g} spread)",
        f"{SHARP_FACTOR} (1 + {SHARP_DEVIATIONS:g} spread)",
    )
    yield f"| limit 1: {worst} times the worst of all | {1e4 * found.by_worst:.2f} |"
    yield (
        f"| limit 2: {typical} times the worst kernel, or the mean sample |"
        f" {1e4 * found.by_typical:.2f} |"
    )
    yield f"| **tolerance**: the smaller limit | **{1e4 * found.tolerance:.2f}** |"
    for name, error in found.judged.items():
        ratio = error / found.tolerance
        yield (
            f"| {name} | {1e4 * error:.2f}: {ratio:.2f}x tolerance,"
            f" {'passes' if ratio <= 1 else 'fails'} |"
        )


def _span(errors: list[float]) -> str:
    return f"{1e4 * min(errors):.2f} to {1e4 * max(errors):.2f}"


def picture(found: ToleranceExample) -> str:
    """The same figures as points on one axis, as SVG that a light and a dark page can show."""
    rows = [*((name, [error], "#2563eb") for name, error in found.reference.items())]
    rows += [("stochastic-rounding samples", found.samples, "#0d9488")]
    rows += [
        (name, [error], "#16a34a" if error <= found.tolerance else "#dc2626")
        for name, error in found.judged.items()
    ]
    last = 1.15 * max(error for _, errors, _ in rows for error in errors)
    height = TOP + ROW * len(rows) + 40

    def x(error: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * error / last

    def text(at: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{at:.1f}" y="{y}" {more}>{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        '<g font-family="sans-serif" font-size="13" fill="#1f2937">',
        (
            "<title>rms error of o: emulated kernels, samples, tolerance and three judged"
            " kernels</title>"
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(
            x(found.tolerance) + 6, 20, f"tolerance {1e4 * found.tolerance:.2f}", 'fill="#b45309"'
        ),
        (
            f'<line x1="{x(found.tolerance):.1f}" x2="{x(found.tolerance):.1f}" y1="8"'
            f' y2="{height - 36}" stroke="#b45309" stroke-width="2"/>'
        ),
    ]
    for number, (name, errors, colour) in enumerate(rows):
        y = TOP + ROW * number
        parts.append(text(LEFT - 12, y + 4, name, 'text-anchor="end"'))
        parts += [
            f'<circle cx="{x(error):.1f}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.7"/>'
            for error in errors
        ]
    parts.append(
        f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{height - 36}" y2="{height - 36}"'
        ' stroke="#6b7280"/>'
    )
    step = 1e-4
    for tick in range(int(last / step) + 1):
        parts.append(text(x(tick * step), height - 18, f"{tick}", 'text-anchor="middle"'))
    parts += [
        text(WIDTH - 20, height - 3, "rms error of o, 1e-4", 'text-anchor="end"'),
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--svg", type=Path, help="draw to this file")
    to = parser.parse_args().svg
    found = example()
    print("\n".join(table(found)))
    if to is not None:
        to.write_text(picture(found))


if __name__ == "__main__":
    main()
