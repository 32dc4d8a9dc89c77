"""Waivers as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waived:
    """One waiver that was applied.

    Args:
        covers: which verdicts, in words.
        reason, owner, expires: as its file says.
        rows: verdicts it took out of the decision.
    """

    covers: str
    reason: str
    owner: str
    expires: str
    rows: int
