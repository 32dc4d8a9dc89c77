"""The kernel beside every suspect on one question."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase, bench
from kdaverify.diagnosis.suspects import Suspect, declared
from kdaverify.diagnosis.tolerances import APART, Fit, Tolerances, comparable, fit

SHARE: Final = 0.25
"""Largest share of the error that a suspect may leave unexplained, where the rest is within the
noise of conforming kernels."""


@dataclass(frozen=True)
class Match:
    """How near one suspect comes.

    Args:
        shows: whether the mistake changes anything here.
    """

    suspect: Suspect
    fit: Fit
    shows: bool = True

    @property
    def indistinguishable(self) -> bool:
        """Whether no output distinguishes the two, and the mistake accounts for the error."""
        return self.shows and self.fit.noise <= 1 and self.fit.distance <= SHARE


class FaultComparison:
    """One question, the kernel's answer to it, and what others answer.

    Args:
        question: what failed.
        judged: the kernel.
    Raises:
        ContractOverflow, UncertifiedError: there is no truth to measure by.
    """

    def __init__(self, question: PropertyCase, judged: Adapter) -> None:
        self.question, self.judged = question, judged
        self.bench: DiagnosisCase = bench(question, judged)
        self.kernel: KernelErrors = self.bench.answer(judged)
        self.scales: Tolerances = self.bench.tolerances()

    @property
    def repeats(self) -> bool:
        """Whether the kernel answers the same twice, but for the order of sums."""
        return self.kernel.near(self.bench.answer(self.judged))

    @property
    def wrong(self) -> bool:
        """Whether any output is over its tolerance."""
        own = self.kernel.outputs
        exact = KernelErrors({name: x.exact for name, x in self.scales.items() if name in own})
        return (
            self.kernel.failed is not None or fit(self.kernel, exact, self.scales).noise * APART > 1
        )

    @property
    def comparable(self) -> bool:
        """Whether enough of the outputs is finite to be compared with those of suspects."""
        return comparable(self.kernel, self.scales)

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The wrong outputs whose whole error comes from memory that was never written."""
        return _unwritten(self.kernel, lambda: self.bench.answer(self.judged), self.scales)

    def match(self, suspect: Suspect) -> Match:
        """How near a suspect comes; its noise limit includes a change of arithmetic."""
        answer = self.answer(suspect)
        found = fit(self.kernel, answer, self.scales)
        if found.distance <= SHARE and 1 < found.noise < float("inf"):
            found = fit(self.kernel, answer, self.scales, twin=self.answer(suspect, twin=True))
        near = found.distance <= SHARE
        return Match(
            suspect, found, shows=near and fit(answer, self.right(suspect), self.scales).noise > 1
        )

    def matches(self, suspects: Iterable[Suspect]) -> list[Match]:
        """The nearest first."""
        return sorted(
            (self.match(suspect) for suspect in suspects),
            key=lambda match: (match.fit.distance, match.fit.noise),
        )

    def right(self, suspect: Suspect) -> KernelErrors:
        """What the suspect's kernel answers without the mistake."""
        return self.bench.answer(suspect.right(declared(self.question, self.judged)))

    def answer(self, suspect: Suspect, *, twin: bool = False) -> KernelErrors:
        """What a suspect answers; its twin is another conforming kernel with the mistake."""
        return self.bench.answer(suspect.adapter(declared(self.question, self.judged), twin=twin))


def _unwritten(
    kernel: KernelErrors, call: Callable[[], KernelErrors], scales: Tolerances
) -> tuple[str, ...]:
    """The wrong outputs if all their wrong elements come from unwritten memory, else ().

    Math: an element comes from unwritten memory if it is finite, and is NaN when the same call runs
    on fresh memory full of NaN. One that is NaN in both calls may have been computed.

    Args:
        kernel: the answer to the plain call.
        call: the same call again.
    """
    with poisoned_allocations():
        poisoned = call()
    if poisoned.outputs.keys() != kernel.outputs.keys():
        return ()
    found = list[str]()
    for name, scale in scales.items():
        if name not in kernel.outputs:
            continue
        mine, marked, exact = (
            scale.counted(x) for x in (kernel.outputs[name], poisoned.outputs[name], scale.exact)
        )
        wrong = ~((mine - exact).abs() <= APART * scale.largest)
        if bool((wrong & ~(mine.isfinite() & marked.isnan())).any()):
            return ()
        found += [name] if bool(wrong.any()) else []
    return tuple(found)
