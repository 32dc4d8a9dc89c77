"""What one process runs: a fault at falling strengths, or a conforming kernel's tests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

from kdaverify.adapters.registry import find
from kdaverify.kills.controls import ConformingControls, retested
from kdaverify.kills.hunt import Hunt, hunt
from kdaverify.kills.known_faults import KnownFault, catalogue_by
from kdaverify.kills.rows import EVERY, Attempt, ConformingRow, FaultRow, kill_of
from kdaverify.verdicts.verdict import Verdict


class Unfinished(Exception):
    """The time was up before anything was proven."""


@dataclass(frozen=True)
class Ladder:
    """The strengths of one fault under one profile.

    Args:
        until: when to give up, by time.time().
    """

    fault: KnownFault
    profile: str
    until: float

    @cached_property
    def controls(self) -> ConformingControls:
        return ConformingControls(self.fault)

    def step(self, strength: float, known: Verdict | None) -> tuple[Attempt, Verdict | None]:
        """The suites at one strength; what killed the fault at the strength before is tested first.

        Raises:
            Unfinished: the time was up.
        """
        started, spec = time.process_time(), self.fault.spec(strength)
        killer, met = self._again(spec, known), Hunt(None, 0.0)
        if killer is None:
            met = hunt(spec, self.profile, self.controls.objection, self.until)
            killer = met.killer
        if met.out_of_time:
            raise Unfinished(spec)
        attempt = Attempt(
            strength=strength,
            profile=self.profile,
            kill=None if killer is None else kill_of(killer),
            cases=max(1, len(met.tested)),
            seconds=round(time.process_time() - started, 1),
            dismissed=tuple(met.dismissed),
            trouble=tuple(met.trouble),
        )
        return attempt, killer

    def _again(self, spec: str, known: Verdict | None) -> Verdict | None:
        reported = [] if known is None else retested(find(spec), known, spec)
        return next(
            (
                verdict
                for verdict in reported
                if verdict.status.rejects and not self.controls.objection(verdict)
            ),
            None,
        )


def descend(name: str, profile: str, until: float, *, weaker: bool, impl: str = "") -> FaultRow:
    """A fault at full strength and, as long as it dies, at its weaker ones.

    Args:
        name: its id.
        until: when to give up, by time.time().
        weaker: whether weaker ones are tested at all.
        impl: an implementation of the operator whose fault it is; "" for shipped ones.
    Raises:
        Unfinished: it was not known by then.
    """
    ladder = Ladder(catalogue_by(impl).faults[name], profile, until)
    found, killer = list[Attempt](), None
    for strength in ladder.fault.strengths if weaker else ladder.fault.strengths[:1]:
        attempt, killer = ladder.step(strength, killer)
        found.append(attempt)
        if killer is None:
            break
    return FaultRow(id=name, profile=profile, attempts=tuple(found))


def whole(name: str, profile: str, until: float, suite: str = EVERY) -> ConformingRow:
    """A conforming kernel under every test of a suite, or of all of them.

    Raises:
        Unfinished: the time was up before the last one.
    """
    started = time.process_time()
    met = hunt(name, profile, None, until, only=suite)
    if met.out_of_time:
        raise Unfinished(name)
    return ConformingRow(
        id=name,
        profile=profile,
        suite=suite,
        runs=len(met.tested),
        seconds=round(time.process_time() - started, 1),
        false_alarms=tuple(
            f"{reported.headline()}; {reported.replay}" for reported in met.rejected
        ),
        trouble=tuple(met.trouble),
    )
