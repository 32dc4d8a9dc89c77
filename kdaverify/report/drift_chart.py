"""Drift on a terminal: error against length, the conforming band behind the kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from kdaverify.checks.growth import Growth

STEP = 5
ROWS = 13
LABEL_EVERY = 4
# Decades left free above and below.
MARGIN = 0.1
BAND, POINT, BETWEEN = "░", "●", "·"


def chart(growth: Growth) -> Text:
    """The error of one output, with the band of conforming kernels.

    A column is a fifth of the way between two lengths; rows share what lies between the least and
    the largest error.
    """
    own, low, high = (_between(errors.tolist()) for errors in (growth.error, *growth.band))
    top, bottom = max(*own, *high) + MARGIN, min(*own, *low) - MARGIN
    height = (top - bottom) / (ROWS - 1)

    def row(error: float) -> int:
        return round((top - error) / height)

    text = Text()
    for i in range(ROWS):
        text.append(
            f"{10.0 ** (top - i * height):8.1e} ┤" if i % LABEL_EVERY == 0 else " " * 9 + "│",
            style="dim",
        )
        for column, error in enumerate(own):
            if row(error) == i:
                text.append(
                    POINT if column % STEP == 0 else BETWEEN,
                    style="bold red" if bool(growth.used[column // STEP] > 1) else "bold green",
                )
            else:
                text.append(
                    BAND if row(high[column]) <= i <= row(low[column]) else " ", style="blue"
                )
        text.append("\n")
    text.append(
        " " * 9 + "└" + ("─" * (STEP - 1) + "┬") * (len(growth.lengths) - 1) + "─\n", style="dim"
    )
    text.append(" " * 8 + _labels(growth.lengths) + "\n", style="dim")
    text.append(f"{growth.output}: relative error against ", style="bold")
    text.append(f"tokens; {POINT} {growth.kernel.name}, {BAND} conforming kernels")
    return text


def _between(errors: Sequence[float]) -> list[float]:
    """log10 of the errors, with STEP - 1 values between two of them."""
    logs = [math.log10(error) for error in errors]
    return [a + (b - a) * i / STEP for a, b in pairwise(logs) for i in range(STEP)] + logs[-1:]


def _labels(lengths: Sequence[int]) -> str:
    """Every other length, from the last one back, under its tick."""
    reported = [
        _short(length) if (len(lengths) - 1 - i) % 2 == 0 else ""
        for i, length in enumerate(lengths)
    ]
    return "".join(f"{label:^{STEP}}" for label in reported)


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)
