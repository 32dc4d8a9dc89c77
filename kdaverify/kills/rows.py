"""What a run on one fault, or one conforming kernel, came to: a line, a row."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from kdaverify.verdicts.verdict import Verdict

EVERY: Final = "*"


class KillMatrixRow(BaseModel):
    """Frozen data that is written and read again."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def plain(self) -> dict[str, Any]:
        """As data that is JSON for any reader: what is infinite is a string."""
        return json.loads(self.model_dump_json())


class Kill(KillMatrixRow):
    """The verdict that kills a fault, where every conforming kernel passes.

    Args:
        property, output, dtype, case, status, statistic, ratio, message, replay: of the verdict.
        over_family: rms error over the worst baseline kernel's; None where not compared.
    """

    property: str
    output: str
    dtype: str
    case: str
    status: str
    statistic: str | None
    ratio: float | None
    over_family: float | None
    message: str
    replay: str


class Attempt(KillMatrixRow):
    """The suites on one fault at one strength.

    Args:
        kill: None where it survived.
        cases: that were judged until then.
        seconds: of processor time that took.
        dismissed: rejections that count for nothing, and why: a conforming kernel is rejected too,
            or the call broke where it should not.
        trouble: what went wrong in the harness.
    """

    strength: float
    profile: str
    kill: Kill | None
    cases: int
    seconds: float
    dismissed: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


class FaultRow(KillMatrixRow):
    """One fault under one profile, at falling strengths as long as it dies."""

    row: Literal["fault"] = "fault"
    id: str
    profile: str
    attempts: tuple[Attempt, ...]

    @property
    def killed(self) -> bool:
        """At full strength."""
        return self.attempts[0].kill is not None


class ConformingRow(KillMatrixRow):
    """One suite, or all of them, on one conforming kernel.

    Args:
        suite: by property; EVERY for all.
        runs: cases that were judged.
        false_alarms: those that were rejected, with their replay lines.
    """

    row: Literal["legal"] = "legal"
    id: str
    profile: str
    suite: str = EVERY
    runs: int
    seconds: float
    false_alarms: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()


def kill_of(verdict: Verdict) -> Kill:
    """The kill that a verdict is."""
    named = {
        name: getattr(verdict, name)
        for name in ("property", "output", "dtype", "case", "statistic", "ratio", "replay")
    }
    over = min(verdict.peers) if verdict.peers else None
    return Kill(**named, status=str(verdict.status), over_family=over, message=verdict.headline())
