"""Waivers as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waived:
    """One waiver that was applied.

    Args:
        covers: which failures of the implementation, in words.
        cap: the most that it forgives.
        reason, owner, expires: as its file says.
    """

    implementation: str
    covers: str
    cap: str
    reason: str
    owner: str
    expires: str
