"""A whole run against conforming kernels: a small rise that no single case would show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kdaverify.checks.median_limit import median_limit
from kdaverify.checks.property_table import named
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LIMIT: Final = 1.05
"""Real kernels come within this factor of their emulated contract over a run: FLA, cuDNN and
FlashKDA have medians of 0.99 to 1.01 on an H200."""
# A kernel 10 % over its nearest reference kernel was found in 24 of 24 runs of 40 cases
# (benchmarks.detection_power).
CONFIDENCE: Final = 0.99
FEWEST: Final = 20
"""Cases that a run must have. Chosen: of 20 ratios the limit at 99 % is the fifth smallest."""
ALIKE: Final = 0.05
"""Scatter, of the logarithm, below which two conforming kernels are alike. Chosen, of the size of
the limit above."""


@dataclass(frozen=True)
class Paired:
    """The rms error of one output in one format over a run.

    Args:
        dtype, output, contract: of what.
        cases: problems, each once.
        ratio: median over them of the error over that of the nearest conforming kernel.
        limit: lower limit of that median: above LIMIT the implementation is worse than the
            conforming kernels that it resembles.
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
            f"{self.output} {self.dtype}: over {self.cases} cases the rms error is"
            f" {_times(self.ratio)} times that of the nearest reference kernel of {self.contract}"
            f" (lower {CONFIDENCE:.0%} confidence limit {_times(self.limit)}; above {LIMIT} it is"
            " rejected)"
        )


def _times(ratio: float) -> str:
    """With two decimals: "1 times" reads as a count."""
    return f"{ratio:.2f}" if ratio < 1e3 else f"{ratio:.3g}"


class PairedSample(NamedTuple):
    """What of a verdict counts in a run: its output, and rms error over conforming ones."""

    property: str
    dtype: str
    output: str
    contract: str
    case: str
    peers: Sequence[float]


def paired(samples: Iterable[PairedSample | Verdict]) -> tuple[Paired, ...]:
    """One for every format, output and contract with enough cases.

    Math: r[i, j] = rms error of case i over that of conforming kernel j on the same problem. A
    kernel that computes as j does has r near 1 in every case, one with a tenth more error near 1.1;
    to those that compute otherwise it scatters. So only the j count whose log r scatters (from its
    20 % to its 80 % quantile) by at most twice what the closest does, and 0.05. Of each of them the
    median over i has a lower limit at 99 %, by the bootstrap over cases; the smallest of these
    limits is judged. Only cases count whose conforming kernels have typical errors, and all of
    which stayed finite.
    """
    runs: dict[tuple[str, str, str], list[PairedSample | Verdict]] = defaultdict(list)
    paired_properties = named(lambda found: found.paired)
    for sample in samples:
        if sample.peers and sample.property in paired_properties:
            runs[sample.dtype, sample.output, sample.contract].append(sample)
    found = (_of(key, run) for key, run in sorted(runs.items()))
    return tuple(run for run in found if run is not None)


def _of(key: tuple[str, str, str], samples: list[PairedSample | Verdict]) -> Paired | None:
    import numpy as np

    ensemble = Counter(len(sample.peers) for sample in samples).most_common(1)[0][0]
    complete = [sample for sample in samples if len(sample.peers) == ensemble]
    logs = _mean(
        [sample.case for sample in complete], np.log([sample.peers for sample in complete])
    )
    if len(logs) < FEWEST:
        return None
    ordered = np.sort(logs, axis=0)
    scatter = ordered[len(logs) * 4 // 5] - ordered[len(logs) // 5]
    alike = [np.exp(column) for column in ordered[:, scatter <= 2 * scatter.min() + ALIKE].T]
    nearest = min(alike, key=lambda column: median_limit(column, CONFIDENCE))
    return Paired(
        *key,
        len(logs),
        float(nearest[(len(logs) - 1) // 2]),
        float(median_limit(nearest, CONFIDENCE)),
    )


def _mean(cases: list[str], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the runs of one problem, by conforming kernel."""
    import numpy as np

    _, place, times = np.unique(cases, return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(place, column) for column in logs.T], axis=1)
    return sums / times[:, None]
