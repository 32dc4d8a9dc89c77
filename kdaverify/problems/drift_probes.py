"""Problems whose error accumulates: the same memory, or kind of writes, at all lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kdaverify.problems.problem import Problem
from kdaverify.problems.profiles import rank
from oracles.waypoints import WINDOW

Way = Literal["uncut", "resumed", "decoded"]
WAYS: Final[tuple[Way, ...]] = ("uncut", "resumed", "decoded")
"""In one call; in 64 parts, each resumed from the state the last one returned; one token at a time
after a prefill."""

PARTS: Final = 64
"""Of a resumed run; and the octaves that a rise is fitted over: 6."""

STEPS: Final = 256
"""Single tokens of a decoded run, at most: its last quarter, after all the others in one call."""

LEAST: Final = 2 * PARTS
FEWEST: Final = 4
"""Tokens, and sequences, of a problem that drift is tested on."""

SHORTEST: Final = WINDOW
"""Tokens of the first length looked at: a full window of outputs."""


MEASURED: Final = ("bf16", "fp16", "fp32")
"""Formats that drift is measured in, the narrowest first; float64 is too coarse a truth for
fp64."""


@dataclass(frozen=True)
class DriftProbe:
    """Regimes that keep a memory.

    Args:
        shows: one line, what adds up on it.
        gate, key, beta, state: names of regimes.
    """

    shows: str
    gate: str
    key: str
    beta: str
    state: str = "absent"


PROBES: Final[Mapping[str, DriftProbe]] = {
    "memory": DriftProbe("one write, then slow decay: every rounding of decay or state stays",
                         "memory", "random", "sparse"),
    "held": DriftProbe("an initial state and no write: decay alone, without the noise of a write",
                       "memory", "random", "zero", "random"),
    "faint": DriftProbe("orthogonal keys, no decay, faint writes: a narrow state stops taking them",
                        "zero", "one-hot", "faint"),
    "writes": DriftProbe("random writes that correct each other: what a model does", "slow",
                         "random", "uniform"),
}  # fmt: skip


@dataclass(frozen=True)
class DriftCase:
    """One case of drift.

    Args:
        name: of the test.
        probe: a key of PROBES.
        way: how the tokens are fed.
        profile: the smallest profile that tests it; the larger ones test it too.
        tokens, samples: the longest length, and independent sequences.
    """

    name: str
    probe: str
    way: Way
    profile: str
    tokens: int
    samples: int

    def problem(self, dtype: str) -> Problem:
        return drift_problem(self.probe, dtype, tokens=self.tokens, samples=self.samples)


def drift_problem(
    probe: str, dtype: str, *, tokens: int, samples: int, seed: int = 0, width: int = 16
) -> Problem:
    """`samples` sequences of a probe, narrow heads.

    Raises:
        KeyError: no such probe.
    """
    of = PROBES[probe]
    return Problem(
        B=samples, T=tokens, H=1, HV=1, K=width, V=width, value="normal", seed=seed,
        gate=of.gate, key=of.key, beta=of.beta, state=of.state,
        dtype=dtype,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


SHORTER: Final = 16
MOST_INTERPRETED: Final = 512
"""Of an interpreted kernel: so many times fewer tokens, and no more than this."""

CASES: Final = (
    DriftCase("memory", "memory", "uncut", "smoke", 4096, 6),
    DriftCase("memory-resumed", "memory", "resumed", "acceptance", 4096, 8),
    DriftCase("held-decoded", "held", "decoded", "acceptance", 1024, 8),
    *(
        DriftCase(f"{probe}-8k", probe, "uncut", "acceptance", 8192, 8)
        for probe in ("held", "faint", "writes")
    ),
    DriftCase("memory-32k", "memory", "uncut", "nightly", 32768, 16),
    DriftCase("writes-32k", "writes", "uncut", "nightly", 32768, 16),
    DriftCase("memory-128k", "memory", "uncut", "nightly", 131072, 4),
)


def drift_cases(profile: str, dtype: str, others: Sequence[str]) -> tuple[DriftCase, ...]:
    """The cases of a profile in one format; every one of a smaller profile too.

    Smoke tests it in the narrowest format alone: a carry that is too narrow for a wider one fails
    every tolerance after a chunk.

    Args:
        others: the formats that the implementation takes.
    """
    measured = [name for name in MEASURED if name in others]
    if dtype not in (measured[:1] if profile == "smoke" else measured):
        return ()
    return tuple(case for case in CASES if rank(case.profile) <= rank(profile))


def shortened(problem: Problem) -> Problem:
    """For interpreted kernels, whose tokens cost a thousand times what compiled ones do."""
    return problem.replace(T=max(LEAST, min(problem.T // SHORTER, MOST_INTERPRETED)), B=FEWEST)
