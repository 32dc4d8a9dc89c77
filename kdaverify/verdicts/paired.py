"""A whole run against the legal kernels on the same problems: a small rise of the error that no single case would show."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Final

from kdaverify.checks.median_limit import median_limit
from kdaverify.verdicts.verdict import Verdict

PROPERTIES: Final = ("forward", "panel", "state", "extreme_gates", "resume", "packing", "causality", "options", "gradients")
"""What holds outputs and gradients of whole calls against exact values."""
LIMIT: Final = 1.05
"""Real kernels come within this factor of their emulated contract over a run."""
CONFIDENCE: Final = 0.99
FEWEST: Final = 20
"""Cases that a run must have."""
ALIKE: Final = 0.05
"""Scatter, of the logarithm, that tells no two legal kernels apart."""


@dataclass(frozen=True)
class Paired:
    """The rms error of one output in one format over a run.

    Args:
        dtype, output, contract: of what.
        cases: problems, each once.
        ratio: median over them of the error over that of the nearest legal kernel.
        limit: lower limit of that median: above LIMIT the implementation is worse than the legal kernels that it resembles.
    """

    dtype: str
    output: str
    contract: str
    cases: int
    ratio: float
    limit: float

    @property
    def raised(self) -> bool:
        return self.limit > LIMIT

    def __str__(self) -> str:
        return (
            f"{self.output} {self.dtype}: over {self.cases} cases the rms error is {self.ratio:.3g} times that of the nearest legal kernel "
            f"of {self.contract} (lower limit {self.limit:.3g}, allowed {LIMIT})"
        )


def paired(verdicts: Sequence[Verdict]) -> tuple[Paired, ...]:
    """One for every format, output and contract with enough cases.

    Math: r[i, j] = rms error of case i over that of legal kernel j on the same problem. A kernel that computes as j does has r near 1 in
    every case, one with a tenth more error near 1.1; to those that compute otherwise it scatters. So only the j count whose log r scatters
    (from its 20 % to its 80 % quantile) by at most twice what the closest does, and 0.05. Of each of them the median over i has a lower
    limit at 99 %, by the bootstrap over cases; the smallest of these limits is judged. Only cases count whose legal kernels were not lucky,
    and all of which stayed finite.
    """
    runs: dict[tuple[str, str, str], dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        if verdict.peers and verdict.property in PROPERTIES:
            runs[verdict.dtype, verdict.output, verdict.contract][verdict.case].append(verdict.peers)
    found = (_of(key, cases) for key, cases in sorted(runs.items()))
    return tuple(run for run in found if run is not None)


def _of(key: tuple[str, str, str], cases: dict[str, list[tuple[float, ...]]]) -> Paired | None:
    family = Counter(len(peers) for rows in cases.values() for peers in rows).most_common(1)[0][0]
    complete = {case: [peers for peers in rows if len(peers) == family] for case, rows in cases.items()}
    ratios = [_mean(rows) for rows in complete.values() if rows]
    if len(ratios) < FEWEST:
        return None
    by_kernel = list(zip(*ratios, strict=True))
    furthest = 2 * min(_scatter(column) for column in by_kernel) + ALIKE
    nearest = min((column for column in by_kernel if _scatter(column) <= furthest), key=lambda column: median_limit(column, CONFIDENCE))
    return Paired(*key, len(ratios), median_low(nearest), median_limit(nearest, CONFIDENCE))


def _mean(rows: list[tuple[float, ...]]) -> list[float]:
    """The geometric mean over the runs of one problem, by legal kernel."""
    return [math.exp(fmean(math.log(ratio) for ratio in column)) for column in zip(*rows, strict=True)]


def _scatter(ratios: Sequence[float]) -> float:
    logs = sorted(math.log(ratio) for ratio in ratios)
    return logs[len(logs) * 4 // 5] - logs[len(logs) // 5]
