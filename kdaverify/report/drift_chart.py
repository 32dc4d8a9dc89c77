"""Drift on a terminal: error against length, both logarithmic, the band of legal kernels behind the kernel's own points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.text import Text

from kdaverify.checks.growth import Growth

STEP = 5
ROWS_A_DECADE = 5
MOST_ROWS = 24
BAND, POINT, BETWEEN = "░", "●", "·"


def chart(growth: Growth) -> Text:
    """The error of one output, with its legal band.

    A row is a fifth of a decade or more, a column a fifth of the way between two lengths.
    """
    low, high = ([*errors] for errors in (_between(growth.band[0].tolist()), _between(growth.band[1].tolist())))
    own = [*_between(growth.error.tolist())]
    top, bottom = math.ceil(max(*high, *own)), math.floor(min(*low, *own))
    rows = min(MOST_ROWS, ROWS_A_DECADE * (top - bottom))

    def row(error: float) -> int:
        return min(rows - 1, int((top - error) / (top - bottom) * rows))

    text = Text()
    for i in range(rows):
        decade = top - i * (top - bottom) / rows
        labelled = i == 0 or math.floor(decade) != math.floor(decade + (top - bottom) / rows)
        text.append(f"{10.0 ** round(decade):8.0e} ┤" if labelled else " " * 9 + "│", style="dim")
        for column, error in enumerate(own):
            if row(error) == i:
                text.append(POINT if column % STEP == 0 else BETWEEN, style="bold red" if _over(growth, column) else "bold green")
            else:
                text.append(BAND if row(high[column]) <= i <= row(low[column]) else " ", style="blue")
        text.append("\n")
    text.append(" " * 9 + "└" + ("─" * (STEP - 1) + "┬") * (len(growth.lengths) - 1) + "─\n", style="dim")
    text.append(" " * 8 + _labels(growth.lengths) + "\n", style="dim")
    text.append(f"{growth.output}: relative error against ", style="bold")
    text.append(f"tokens; {POINT} {growth.kernel.name}, {BAND} legal kernels")
    return text


def _between(errors: Sequence[float]) -> list[float]:
    """log10 of the errors, with STEP - 1 values between two of them."""
    logs = [math.log10(error) for error in errors]
    return [a + (b - a) * i / STEP for a, b in pairwise(logs) for i in range(STEP)] + logs[-1:]


def _over(growth: Growth, column: int) -> bool:
    return bool(growth.used[column // STEP] > 1)


def _labels(lengths: Sequence[int]) -> str:
    """Every other length, from the last one back, under its tick."""
    told = [_short(length) if (len(lengths) - 1 - i) % 2 == 0 else "" for i, length in enumerate(lengths)]
    return "".join(f"{label:^{STEP}}" for label in told)


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)
