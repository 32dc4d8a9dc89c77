"""A relation that holds between runs of every right kernel, and the problems it is tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from hypothesis import strategies as st

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Bounds, Problem, problems


class WantedFields(TypedDict, total=False):
    """What `problems` takes from a law: see there."""

    packed: bool
    gate: tuple[str, ...]
    key: tuple[str, ...]
    beta: tuple[str, ...]
    state: tuple[str, ...]
    value: tuple[str, ...]


LIVELY: Final[WantedFields] = {
    "gate": ("log-sigmoid", "slow", "mild", "half-zero", "mixed"),
    "key": ("random", "coherent-0.3", "coherent-0.6", "alternating"),
    "beta": ("uniform", "mixed", "near-one"),
    "state": ("random", "asymmetric", "absent"),
    "value": ("normal", "large"),
}
"""Regimes under which every token, and the initial state, can be seen in what comes after: what
leaks then shows."""


def of_any(_: Problem) -> str | None:
    """For laws that hold for every problem."""
    return None


def of_shared_gates(problem: Problem) -> str | None:
    """For laws of kernels with shared or no gates: why it is none of a problem's."""
    return "every key channel has a gate of its own" if problem.gates == "channel" else None


def nothing_else(_: Problem) -> tuple[Problem, ...]:
    """For laws whose calls have the sizes and options of the problem itself."""
    return ()


def stated(cases: Callable[..., object]) -> str:
    """The statement of a law that a function's docstring is: its words from a small letter on."""
    sentence = (cases.__doc__ or "").strip()
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


DEEPEST: Final = -60.0
"""Nats over a sequence: exp(-60) times 2^-20 times any random value is a normal number of fp32."""


def no_deep_decay(problem: Problem) -> str | None:
    """For laws to the bit under powers of two: why products may be subnormal; None if they may not.

    A subnormal term decides how a tie of its sum is rounded, and vanishes from the scaled call: 3
    of 139 conforming kernels differed by one unit in one element there.
    """
    decays = problem.decays()[0] if problem.packed else problem.decays().flatten(0, 1)
    spans = [(b * problem.T + first, length) for b, first, length in problem.spans]
    sums = (decays[first : first + length].sum(0) for first, length in spans if length)
    deepest = min((float(total.min()) for total in sums if total.numel()), default=0.0)
    if deepest < DEEPEST:
        return f"gates that sum to {deepest:.3g} over a sequence make subnormal products"
    return None


def ends_excluded(problem: Problem, *, gate: bool = False, beta: bool = False) -> str | None:
    """For laws that set gates, or betas, to exactly 0: why that lies outside the problem's ranges;
    None if it does not.
    """
    highest = (problem.gate_range or (None, None))[1]
    weakest = (problem.beta_range or (None, None))[0]
    if gate and highest is not None and highest < 0:
        return f"gates of 0 lie outside the declared range, at most {highest:g}"
    if beta and weakest is not None and weakest > 0:
        return f"beta 0 lies outside the declared range, at least {weakest:g}"
    return None


@dataclass(frozen=True)
class Law:
    """One law.

    Args:
        name: what a verdict's detail calls it.
        statement: what holds, in one line.
        section: of math.md, and the number of the law there.
        exists_for: the mechanism of the faults it is to catch, with examples of the catalogue.
        check: tests a kernel.
        untestable: why it cannot be tested on a problem; None if it can.
        becomes: problems whose calls have the sizes and options of those that the law makes of a
            problem: a kernel must support them too.
        wanted: fields of the problems that are generated for it; of KDA `WantedFields`.
        backward: whether it is a law of gradients: it is not tested on kernels that have none.
        judged: whether results are held against truth and tolerance, as the cost of a problem then
            requires smaller
        ones; bits need neither.
        needs: parameters and functions of a declaration without which it cannot be tested.
    """

    name: str
    statement: str
    section: str
    exists_for: str
    check: Callable[[Adapter, Any], list[Outcome]]
    untestable: Callable[[Any], str | None] = of_any
    becomes: Callable[[Any], tuple[Any, ...]] = nothing_else
    wanted: Any = field(default_factory=WantedFields)
    backward: bool = False
    judged: bool = False
    needs: tuple[str, ...] = ()


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
        problems(dtype=dtype, **law.wanted, **tested).filter(
            lambda p: p.T >= SHORTEST and law.untestable(p) is None
        )
    )
    scales, layouts = (draw(st.sampled_from(SCALES)), None), (plain.lengths, None)
    tried = [plain.replace(scale=scale, lengths=lengths) for lengths in layouts for scale in scales]
    return next(
        (p for p in tried if law.untestable(p) is None and adapter.supports(p) is None), plain
    )
